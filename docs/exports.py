"""Writes what follows from the tables of rules, mixers and attacks: python docs/exports.py [--check].

A new rule is one line in RULES or MIXERS (`src/honestly/rules/__init__.py`), a new attack one line in ATTACKS
(`src/honestly/sim/attacks/__init__.py`). From these come the imports beside the tables, `__all__`, the names in
`src/honestly/__init__.py`, and a row of `docs/reference/rules.md`, to be filled in by hand. What is there stays.

Nothing of the package is imported: before this has run, it cannot be.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
RULES = Path("src/honestly/rules/__init__.py")
ATTACKS = Path("src/honestly/sim/attacks/__init__.py")
PUBLIC = Path("src/honestly/__init__.py")
PAGE = Path("docs/reference/rules.md")


def table(text: str, name: str) -> list[str]:
    """The names in the tuple that is assigned to `name`, or that is an argument of the call which is."""
    for node in ast.parse(text).body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == name and isinstance(node, ast.AnnAssign | ast.Assign):
            (names,) = (one for one in ast.walk(node.value) if isinstance(one, ast.Tuple)) if node.value else ()
            return [one.id for one in names.elts if isinstance(one, ast.Name)]
    raise SystemExit(f"there is no table {name}")


def with_imports(text: str, names: Iterable[str], folder: Path) -> str:
    """The text with an import of each name that it lacks, from the file in the folder that defines it."""
    package = ".".join(folder.relative_to(ROOT / "src").parts)
    there = {a.asname or a.name for n in ast.parse(text).body if isinstance(n, ast.ImportFrom) for a in n.names}
    for name in names:
        if name in there:
            continue
        files = [file for file in folder.glob("*.py") if re.search(rf"^class {name}\(", file.read_text(), re.M)]
        if len(files) != 1:
            raise SystemExit(f"{name}: defined in {len(files)} files of {folder.relative_to(ROOT)}, expected one")
        line = f"from {package}.{files[0].stem} import {name}\n"
        at = [match.start() for match in re.finditer(rf"^from {re.escape(package)}\..*\n", text, re.M)]
        later = [start for start in at if text[start:].partition(" import ")[0] > line.partition(" import ")[0]]
        end = text.index("\n", at[-1]) + 1
        place = later[0] if later else end
        text = text[:place] + line + text[place:]
    return text


def with_names(text: str, opening: str, closing: str, names: Iterable[str], form: str) -> str:
    """The text with each name in the list between `opening` and `closing`, one per line, in ruff's order."""
    start = text.index(opening) + len(opening)
    end = text.index(closing, start)
    listed = {line.strip().strip('",') for line in text[start:end].splitlines() if line.strip()} | set(names)
    lines = [form.format(name) for name in sorted(listed, key=_order)]
    return text[:start] + "\n" + "\n".join(lines) + "\n" + text[end:]


def _order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def with_rows(text: str, folder: Path, rules: Iterable[str], mixers: Iterable[str]) -> str:
    """The page with a row for each rule and mixer that has none; values and breakdown points are for its author."""
    for names, heading, row in (
        (rules, "| rule |", "| `{name}` | {summary} | {needs} | {streams} | - | {reference} |"),
        (mixers, "| mixer |", "| `{name}` | {summary} | {needs} | {reference} |"),
    ):
        for name in names:
            attributes = _attributes(folder, name)
            if attributes and f"\n| `{attributes['name']}` |" not in text:
                end = text.index("\n\n", text.index(heading))
                text = text[:end] + "\n" + row.format(**attributes) + text[end:]
    return text


def _attributes(folder: Path, name: str) -> dict[str, str]:
    """Name, summary, needs and so on of the class, as its source says them; {} for one in a folder of its own."""
    for file in folder.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                attributes = {"needs": "-", "streams": "-", "reference": "", "summary": ""}
                for one in node.body:
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value is not None:
                        attributes[one.target.id] = _plain(one.value)
                return {**attributes, "streams": "yes" if attributes["streams"] == "True" else "-"}
    return {}


def _plain(value: ast.expr) -> str:
    words = [str(one.value) for one in ast.walk(value) if isinstance(one, ast.Constant)]
    return ", ".join(sorted(words)) if words else "-"


def changed() -> dict[Path, str]:
    """Every file that is not as the tables say, with what it should be."""
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in (RULES, ATTACKS, PUBLIC, PAGE)}
    old = dict(texts)
    rules, mixers = table(texts[RULES], "RULES"), table(texts[RULES], "MIXERS")
    folder = ROOT / RULES.parent
    texts[RULES] = with_imports(texts[RULES], [*rules, *mixers], folder)
    texts[RULES] = with_names(texts[RULES], "__all__ = [", "]\n", [*rules, *mixers], '    "{}",')
    texts[ATTACKS] = with_imports(texts[ATTACKS], table(texts[ATTACKS], "ATTACKS"), ROOT / ATTACKS.parent)
    imported = "from honestly.rules import ("
    texts[PUBLIC] = with_names(texts[PUBLIC], imported, ")\n", [*rules, *mixers], "    {},")
    texts[PUBLIC] = with_names(texts[PUBLIC], "__all__ = [", "]\n", [*rules, *mixers], '    "{}",')
    texts[PAGE] = with_rows(texts[PAGE], folder, rules, mixers)
    return {path: text for path, text in texts.items() if text != old[path]}


def main() -> int:
    files = changed()
    if "--check" in sys.argv:
        for path in files:
            print(f"{path} does not follow the tables: run `make tables`")
        return int(bool(files))
    for path, text in files.items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
