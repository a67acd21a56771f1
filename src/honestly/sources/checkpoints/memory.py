"""The result of files that is not written to a file: tensors by name, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.arrays import Host, widen
from honestly.sources.checkpoints.tensors import storage
from honestly.sources.source import Leaf, MemorySink


class Flat(MemorySink):
    """Flat arrays that become a dict of shaped ones; bfloat16, which NumPy lacks, becomes float32 without loss."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        super().__init__(leaves)
        self._leaves = leaves
        self._others: dict[str, tuple[Leaf, Host]] = {}

    def put_whole(self, leaf: Leaf, start: int, values: Host) -> None:
        """A piece of a tensor that is not averaged."""
        if leaf.name not in self._others:
            self._others[leaf.name] = (leaf, np.empty(leaf.size, storage(leaf.spec)))
        self._others[leaf.name][1][start : start + len(values)] = values

    def commit(self) -> dict[str, Any]:
        """Tensors by name."""
        by_name = {leaf.name: (leaf, values) for leaf, values in zip(self._leaves, self.finish(), strict=True)}
        return {name: _shape(leaf, values) for name, (leaf, values) in (by_name | self._others).items()}

    def discard(self) -> None:
        """Nothing to remove."""


def _shape(leaf: Leaf, values: Host) -> Host:
    if leaf.spec.dtype == "bfloat16":
        wide = np.empty(leaf.size, np.float32)
        widen(values, wide)
        values = wide
    elif leaf.spec.kind == "bool":
        values = values.astype(bool)
    return values.reshape(leaf.spec.shape)
