"""One client's containers, whatever a stranger puts into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import honestly as hn


def _laughs(leaf: Any, depth: int = 20) -> Any:
    """A list that contains the next one ten times, and so on: 10^20 leaves in no memory at all."""
    for _ in range(depth):
        leaf = [leaf] * 10
    return leaf


@pytest.mark.parametrize(
    "extra", [_laughs([]), _laughs(np.ones(2)), {"a" * 1_000_000: [1.0] * 10_000}], ids=["lists", "arrays", "names"]
)
def test_more_arrays_than_anybody_can_count(extra: Any) -> None:
    updates = [{"w": np.full(3, float(k))} for k in range(4)]
    found = hn.aggregate([*updates, {"w": np.ones(3), "x": extra}], "mean")
    assert found.reasons == {4: "holds more arrays, or longer names, than any model does"}


def test_a_torch_file_of_a_kilobyte_that_holds_them(tmp_path: Path) -> None:
    import torch

    for k in range(4):
        torch.save({"w": torch.full((3,), float(k))}, tmp_path / f"{k}.pt")
    torch.save({"w": torch.ones(3), "x": _laughs([])}, tmp_path / "4.pt")
    found = hn.aggregate(hn.Checkpoints(sorted(tmp_path.glob("*.pt")), allow_torch=True), "mean")
    assert found.reasons == {4: "holds more arrays, or longer names, than any model does"}


def test_what_is_not_an_update_but_has_one_is_told_how_to_give_it() -> None:
    class Module:
        def state_dict(self) -> dict[str, np.ndarray]:
            return {"w": np.ones(3)}

    with pytest.raises(hn.AggregationError, match=r"is a Module, .*: pass its state_dict\(\)"):
        hn.aggregate([Module()] * 3)
    for items in (iter([np.ones(3)]), {"w": np.ones(3)}.values()):
        with pytest.raises(ValueError, match=r"^reference is an? \w+, .*: pass a list of its items$"):
            hn.aggregate([[np.ones(3)]] * 3, reference=items)
