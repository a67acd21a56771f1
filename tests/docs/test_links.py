"""Every link in the Markdown of this repository leads to a file, and to a heading of it where it names one."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_blocks import ROOT, blocks

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")
FENCED = re.compile(r"^ *```.*?^ *```\s*$", flags=re.S | re.M)


def _pages() -> list[Path]:
    """What git knows, or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [ROOT / name for name in run.stdout.splitlines()]
    return [page for page in found if page.is_file()] or [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


PAGES = _pages()
FOLDERS = ("src", "tests", "docs", "benchmarks", "examples", "results")
#: A file that the reader writes.
EXAMPLES = {"src/honestly/rules/my_rule.py"}


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    counts: Counter[str] = Counter()
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.+?)\s*$", text, flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.append(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return frozenset((*found, *re.findall(r'<a (?:id|name)="([^"]+)"', text)))


def dead_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere, with their lines."""
    dead: list[str] = []
    text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue  # another site; nothing is fetched by a test
            name, _, anchor = unquote(target).partition("#")
            path = (page.parent / name) if name else page
            if not path.exists():
                dead.append(f"{page}:{number}: there is no {target}")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                dead.append(f"{page}:{number}: {path.name} has no heading #{anchor}")
    return dead


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_are_not_dead(page: Path) -> None:
    assert not dead_links(page)


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading, and `code`\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#a-heading-and-code) ![b](none.png)\n\n[c [d]](other.md#none)\n```\n[e](none)\n```\n")
    assert [line.rpartition(": ")[2] for line in dead_links(page)] == [
        "there is no none.png",
        "other.md has no heading #none",
    ]


@pytest.mark.parametrize(("name", "example"), [("own-rule", "custom_rule.py"), ("own-attack", "custom_attack.py")])
def test_examples_are_shown_whole(name: str, example: str) -> None:
    """The pages hold the code itself, which any viewer shows, and it is the code of the example."""
    shown = blocks(ROOT / "docs" / "how-to" / f"{name}.md")[0].code
    assert shown == (ROOT / "examples" / example).read_text(encoding="utf-8"), "run `python docs/tables.py`"


def test_no_page_needs_a_preprocessor() -> None:
    assert not [str(page) for page in PAGES if "--8<--" in page.read_text(encoding="utf-8")]


def missing_files(text: str) -> list[str]:
    """Paths of source files in backquotes, from any folder of the repository, that do not exist."""
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|c|cu|h|toml))`", text)
    return [
        path for path in paths if path not in EXAMPLES and not any(f"/{one}".endswith(f"/{path}") for one in _files())
    ]


@cache
def _files() -> tuple[str, ...]:
    return tuple(str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    assert missing_files("see `engine/passes/networks.py`, `kernels/rows.c`") == ["kernels/rows.c"]
    if page.name != "CHANGELOG.md":  # history
        assert missing_files(page.read_text(encoding="utf-8")) == []
