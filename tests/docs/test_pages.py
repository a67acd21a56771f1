"""Every code block of the documentation is run, in order, as a reader would."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from markdown_blocks import ROOT, Reader, blocks

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "results" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
# Blocks that no test machine can run, page by page: the reasons are on the pages.
NOT_RUN = {
    "README.md": 1,
    "docs/how-to/cluster.md": 2,
    "docs/how-to/fedbiomed.md": 1,
    "docs/how-to/gpu.md": 2,
    "docs/how-to/report.md": 1,
    "docs/how-to/scaleout.md": 1,
    "docs/results/paper.md": 1,
    "docs/tutorial.md": 1,
    "examples/flower-deployment/README.md": 1,
    "examples/flower-quickstart/README.md": 3,
    "examples/nvflare/README.md": 1,
    "results/README.md": 1,
}
# Several commands each that have tests of their own; `make test-all` follows these pages.
SLOW = {f"docs/how-to/{name}.md" for name in ("cluster", "language-models", "report", "stress", "watch")}


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _cases() -> list[object]:
    marks = {name: [pytest.mark.slow] for name in SLOW}
    return [pytest.param(page, id=_name(page), marks=marks.get(_name(page), [])) for page in PAGES if blocks(page)]


@pytest.mark.timeout(400)
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


def test_blocks_that_are_not_run_are_few_and_known() -> None:
    """Each says on its page why: another machine, a GPU, a server that stays."""
    reasons = {_name(page): [block.reason for block in blocks(page) if block.reason] for page in PAGES}
    assert {name: len(found) for name, found in reasons.items() if found} == NOT_RUN
