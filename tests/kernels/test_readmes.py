"""Every folder of kernels says what it computes, who calls it, what is done without it, and where that is tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import honestly.kernels

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(place for place in Path(honestly.kernels.__file__).parent.iterdir() if (place / "README.md").is_file())


def test_every_folder_with_sources_has_one() -> None:
    with_sources = {file.parent for ending in ("*.c", "*.cu") for file in FOLDERS[0].parent.rglob(ending)}
    assert with_sources == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_names_every_source_and_files_that_exist(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    for source in [*folder.glob("*.c"), *folder.glob("*.h"), *folder.glob("*.cu")]:
        assert f"`{source.name}`" in text
    for words in (
        r"\*\*What it computes",
        r"Who calls it|called by",
        r"Its fallback|fallback is taken",
        r"Tests? of equality",
    ):
        assert re.search(words, text), words
    named = re.findall(r"`((?:tests|sim|engine|kernels|rules)/[\w/]+\.(?:py|h))`", text)
    assert len(named) >= 3
    for name in named:
        assert (ROOT / name if name.startswith("tests/") else ROOT / "src/honestly" / name).is_file(), name
