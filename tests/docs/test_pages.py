"""Every code block of the documentation is run, in order, as a reader would."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from markdown_blocks import ROOT, Reader, blocks

GENERATED = {"reference/api", "reference/cli", "reference/configuration", "reference/attacks"}
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if not str(page.relative_to(DOCS)).startswith(tuple(GENERATED))),
    *sorted((ROOT / "examples").rglob("README.md")),
]
# Blocks that no test machine can run, page by page: the reasons are on the pages.
NOT_RUN: dict[str, list[str]] = {}
SLOW: set[str] = set()


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _cases() -> list[object]:
    marks = {name: [pytest.mark.slow] for name in SLOW}
    return [pytest.param(page, id=_name(page), marks=marks.get(_name(page), [])) for page in PAGES if blocks(page)]


@pytest.mark.parametrize("page", _cases())
def test_a_reader_can_follow(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = blocks(page)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Reader(tmp_path) as reader:
        for block in found:
            importlib.invalidate_caches()
            reader.follow(block)
    for block in found:  # modules that the page wrote
        sys.modules.pop(Path(block.title or "").stem, None)


def test_blocks_that_are_not_run_are_known() -> None:
    found = {_name(page): [block.reason for block in blocks(page) if block.reason] for page in PAGES}
    assert {name: reasons for name, reasons in found.items() if reasons} == NOT_RUN
