"""Code blocks of Markdown pages, and a reader that runs them in order in its own folder.

- ``python`` runs; all blocks of a page share their names. ``sh`` runs in bash, with `honestly` on the path.
- A block with ``title="name"`` is a file that the reader saves under that name.
- ``text`` is what the block before it prints (``...`` stands for anything, as in doctest).
- ``toml`` and ``json`` must parse; ``diff`` and ``diagram`` are not checked.
- ``<!-- not run: reason -->`` before a block says why it cannot be run here.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^( *)```(?P<language>[\w-]*) *(?:title=\"(?P<title>[^\"]+)\")?\s*$")
NOT_RUN = re.compile(r"^\s*<!-- not run: (.+?) -->\s*$")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LANGUAGES = {"python", "sh", "text", "toml", "json", "diff", "diagram"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    title: str | None
    code: str
    reason: str | None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """The blocks of a page in order."""
    page, lines, found, at = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8").splitlines(), [], 0
    while at < len(lines):
        opened = FENCE.match(lines[at])
        if not opened:
            assert not lines[at].lstrip().startswith("```"), f"{page}:{at + 1}: a fence that is not understood"
            at += 1
            continue
        indent = len(opened[1])
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        code = "\n".join(line[indent:] for line in lines[at + 1 : end]) + "\n"
        marked = NOT_RUN.match(lines[at - 1]) if at else None
        found.append(Block(page, at + 1, opened["language"], opened["title"], code, marked[1] if marked else None))
        at = end + 1
    return found


class Reader:
    """Follows a page in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.printed = folder, ""
        self.environment = _environment(folder)
        self.module = ModuleType(f"page_{id(self)}")  # dataclasses look their module up

    def __enter__(self) -> Self:
        sys.modules[self.module.__name__] = self.module
        return self

    def __exit__(self, *_: object) -> None:
        del sys.modules[self.module.__name__]

    def follow(self, block: Block) -> None:
        """Run, save or check one block."""
        assert block.language in LANGUAGES, f"{block.where}: say what this block is (one of {sorted(LANGUAGES)})"
        if block.reason:
            return
        if block.title:
            (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            self._python(block)
        elif block.language == "sh":
            self._shell(block)
        elif block.language == "text":
            assert doctest.OutputChecker().check_output(block.code, self.printed, FLAGS), (
                f"{block.where}: the page promises\n{block.code}\nbut this was printed:\n{self.printed}"
            )
        elif block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "json":
            json.loads(block.code)

    def _python(self, block: Block) -> None:
        shown = io.StringIO()
        source = "\n" * block.line + block.code  # gives tracebacks the line numbers of the page
        with contextlib.redirect_stdout(shown), contextlib.chdir(self.folder):
            exec(compile(source, block.page, "exec"), vars(self.module))
        self.printed = shown.getvalue()
        _comments_hold(block, self.printed)

    def _shell(self, block: Block) -> None:
        command = ["bash", "-euo", "pipefail", "-c", block.code]
        run = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, capture_output=True, check=False, timeout=300
        )
        self.printed = run.stdout
        assert run.returncode == 0, f"{block.where}: exit status {run.returncode}\n{run.stdout}\n{run.stderr}"


def _comments_hold(block: Block, printed: str) -> None:
    """`print(x)  # [1 2]` prints what its comment says, where every line of output has a `print` in the text."""
    rows = [row for row in block.code.splitlines() if row.lstrip().startswith("print(")]
    for row, shown in zip(rows, printed.splitlines(), strict=False) if len(rows) == printed.count("\n") else ():
        promised = row.rpartition("  # ")[2] if "  # " in row else ""
        if promised[:1] in tuple("[(0123456789'"):
            assert promised == shown, f"{block.where}: {row.strip()} printed {shown}"


def _environment(folder: Path) -> dict[str, str]:
    """`honestly` and `python` are those under test, whatever is installed elsewhere."""
    tools = folder / ".tools"
    tools.mkdir()
    for name, start in (("honestly", "-m honestly"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n')
        (tools / name).chmod(0o755)
    path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    kept: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "PYTEST"))}
    fonts = Path(tempfile.gettempdir()) / f"honestly-docs-fonts-{os.getuid()}"  # listing the fonts takes seconds
    own = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "HOME": str(folder), "MPLCONFIGDIR": str(fonts)}
    return {**kept, **own, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
