"""Phrases that this project does not use. Spelling is checked by codespell, in `make lint`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from markdown_blocks import ROOT

# A pattern, and what to write instead.
PHRASES = {
    r", so that\b": "', so'",
    r"\b(object|row|record|page|file|line|folder|curve|images|accused|missed|accusations|\d (s|ms|kB)),? a "
    r"(round|run|second|step|rule|client)\b": "'per round', 'per run', ...",
    r"polite kill": "the name of the signal",
    r"bearable": "'limited'",
    r"where somebody stands": "what the value is",
    r"whoever gets on": "what the code does",
    r"(rule|attack)s? of the field": "what was compared, and where the list is",
    r"\bgoes the other way than\b": "'moves against'",
    r"\bcosts? (the|its|their) (client|site|vote)s?\b": "'is excluded'",
    r"40 %%": "'40 %' in a description, which argparse does not expand",
    r"\bthis is no \w+ as\b": "'not a'",
    r"\bcosts? (itself|themselves) alone\b": "'is skipped'",
    r"\bcosts? (him|it) (his|its) own\b": "'is excluded'",
    r"\bas (it|they) stands?, memory\b": "'with its current memory'",
    r"\bin the place of\b": "'in place of' or 'instead of'",
    r"\bone a (line|round|row|run)\b": "'one per line', ...",
    r"\bis told so\b": "'gets an error'",
    r"\bcounts? heads\b": "'counts every client once'",
    r"\bfor ever\b": "'forever'",
    r"\bis no (whole|regular|valid)\b": "'is not a'",
    r"\bof whom\b": "'of which'",
    r"\bwhom (it|the rule)\b": "'which clients it', ...",
    r"\bkernels of (now|before)\b": "'present' or 'former kernels'",
    r"\bbegins? anew\b": "'starts again'",
}
# Names of functions are verbs, or nouns for what they return.
PARTICIPLES = {"told", "made", "written", "meant", "shown", "alone", "one", "said", "asked"}
# Names of variables are nouns: what a value is, not what was done with it.
RIDDLES = {*PARTICIPLES, "kept", "found", "given", "held", "taken", "gone", "begun", "got", "heard"} - {"one"}
# A keyword of `Referee.judge` and fields of stored records: their names are known outside.
KNOWN = {("federation/referee.py", "asked"), ("federation/referee.py", "kept"), ("sources/grouping.py", "kept"),
         ("studies/suites/standings.py", "told"), ("runs/transfer.py", "begun"),
         ("kernels/rows.py", "kept")}  # fmt: skip
SCRIPTS = ("benchmarks", "results", "examples", "docs")
# Release notes are history, generated tables belong to their scripts.
SKIPPED = {"CHANGELOG.md", "docs/results/which-rule.md"}


def _texts() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    found += [path for folder in SCRIPTS for path in (ROOT / folder).rglob("*.py")]
    return [path for path in sorted(found) if str(path.relative_to(ROOT)) not in SKIPPED]


def phrases(text: str) -> list[str]:
    """The lines of a text with a phrase that we do not use."""
    found: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, better in PHRASES.items():
            match = re.search(pattern, line, flags=re.IGNORECASE)
            if match:
                found.append(f"{number}: {match[0]!r}: write {better}")
    return found


def participles(source: str) -> list[str]:
    """Functions and methods that are named by a participle."""
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [f"{f.lineno}: def {f.name}: name it by a verb" for f in functions if f.name.strip("_") in PARTICIPLES]


def riddles(source: str) -> list[tuple[int, str]]:
    """Lines with variables, arguments and attributes of functions that are named by a participle."""
    found: list[tuple[int, str]] = []
    for function in (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
        for node in ast.walk(function):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                    found += [(node.lineno, name)] if name.strip("_") in RIDDLES else []
                case _:
                    pass
    return found


def test_texts_avoid_the_forbidden_phrases() -> None:
    found = [f"{p.relative_to(ROOT)}:{hit}" for p in _texts() for hit in phrases(p.read_text(encoding="utf-8"))]
    assert not found, "\n" + "\n".join(found)


def test_functions_are_named_by_verbs() -> None:
    sources = [path for path in _texts() if path.suffix == ".py"]
    found = [f"{p.relative_to(ROOT)}:{hit}" for p in sources for hit in participles(p.read_text(encoding="utf-8"))]
    assert not found, "\n" + "\n".join(found)


def test_variables_are_named_by_nouns() -> None:
    package = ROOT / "src" / "honestly"
    paths = {str(path.relative_to(package)): path for path in package.rglob("*.py")}
    assert len(paths) > 300, "the package was not found"
    for folder in SCRIPTS:
        paths |= {str(path.relative_to(ROOT)): path for path in (ROOT / folder).rglob("*.py")}
    found = [
        f"{file}:{line}: {name}: name it by what it is"
        for file, path in paths.items()
        for line, name in riddles(path.read_text(encoding="utf-8"))
        if (file, name) not in KNOWN
    ]
    assert not found, "\n" + "\n".join(found)


def test_variables_of_the_live_page_are_named_by_nouns() -> None:
    files = sorted((ROOT / "src" / "honestly" / "show" / "live" / "static").glob("*.js"))
    assert len(files) > 10, "the page was not found"
    names = "|".join(RIDDLES)
    found = [hit for p in files for hit in re.findall(rf"(?:const|let|function) (?:{names})\b", p.read_text())]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "It is closed, so that nothing leaks.",
        "one JSON object a round",
        "attackers missed, a round",
        "2.5 s a round",
        "it is no regular file",
        "20 clients, of whom 8 lie",
        "the weights, and whom it believed",
    ],
)
def test_the_check_finds_something(text: str) -> None:
    assert phrases(text)


def test_the_check_leaves_other_text_alone() -> None:
    assert not phrases("chosen so that it fits; a round ends; one object per round; it refuses a round")
    assert participles("def told(): ...\ndef tell(): ...\n") == ["1: def told: name it by a verb"]
    assert riddles("def f(held):\n    self._found, names = held, 1\n") == [(1, "held"), (2, "_found")]
