"""Studies of two machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_threads import one_thread

from honestly.runs.store import Store

__all__ = ["one_thread"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    from half_done_study import half_done  # trains, which other tests of this folder need not be able to

    with half_done(tmp_path_factory.mktemp("theirs")) as store:
        yield store


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "mine") as store:
        yield store
