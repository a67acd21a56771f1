"""Which code made a result: the commit, and a hash of the code that decides it."""

import ast
import hashlib
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "honestly"
SUFFIXES = {".py", ".c", ".h", ".toml"}


def commit() -> str:
    """The short hash of the commit that is checked out, with "+" if the package differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=7", "HEAD") + ("+" if git("status", "--porcelain", "--", "src") else "")


def commits(records: Iterable[dict[str, Any]]) -> str:
    """How many runs which commit made, as a sentence for a page."""
    counts = Counter(record.get("commit", "") for record in records)
    words = [f"{count} at {f'commit {name}' if name else 'earlier commits'}" for name, count in counts.most_common()]
    return f"Runs: {', '.join(words)}."


def code_hash(*places: str) -> str:
    """Hash of the code in these folders and files of the package.

    Comments, docstrings, the layout of Python files, and from where they import do not count: they change no result.
    """
    digest = hashlib.sha256()
    for place in places:
        for file in sorted([SOURCE / place, *(SOURCE / place).rglob("*")]):
            if file.suffix in SUFFIXES:
                digest.update(file.relative_to(SOURCE).as_posix().encode())
                text = file.read_text(encoding="utf-8")
                digest.update((_statements(text) if file.suffix == ".py" else text).encode())
    return digest.hexdigest()[:16]


def _statements(source: str) -> str:
    """The syntax tree of a Python file without imports and docstrings."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str())), *rest]:
                    node.body = rest
                case _:
                    pass
    return ast.dump(tree)
