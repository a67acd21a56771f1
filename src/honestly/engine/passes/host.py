"""The passes on the CPU, for any array library: compiled code where it is available, else NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.arrays import COMPUTE, LARGEST
from honestly.engine.passes import explain
from honestly.engine.passes.blas import BLOCK
from honestly.engine.passes.compiled import CompiledPasses, worth_it
from honestly.engine.passes.coordinates import coordinates, statistics
from honestly.engine.passes.plain import PlainPasses, multiply
from honestly.engine.passes.plan import Block, blocks
from honestly.engine.passes.protocol import ZERO, Verdict
from honestly.result import Float
from honestly.rules.geometry import Coordinates, Statistics
from honestly.rules.rule import ColumnRule
from honestly.sources import Leaf, Source
from honestly.sources.tree import tensor_label

# Columns looked at to find a central client: a guess that the Gram matrix then confirms or corrects.
SAMPLE_RUNS, SAMPLE_RUN = 4, 512


class HostPasses:
    """All passes on the CPU."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.leaves = source.leaves
        self._way = CompiledPasses(source) if worth_it(source) else PlainPasses(source)

    def sample(self, clients: Sequence[int]) -> Float:
        """Runs of columns at even distances over all coordinates."""
        total = sum(leaf.size for leaf in self.leaves)
        starts = np.unique(np.linspace(0, max(0, total - SAMPLE_RUN), SAMPLE_RUNS).astype(int))
        pieces: list[Float] = []
        offset = 0
        for index, leaf in enumerate(self.leaves):
            for start in starts[(starts >= offset) & (starts < offset + leaf.size)] - offset:
                stop = min(leaf.size, int(start) + SAMPLE_RUN)
                piece = np.empty((len(clients), stop - int(start)), dtype=np.float64)
                self.source.read(index, int(start), stop, clients, piece, None)
                pieces.append(piece)
            offset += leaf.size
        return np.concatenate(pieces, axis=1)

    def free_centre(self, clients: Sequence[int]) -> int | None:
        """Zero, where that saves NumPy a step; if there are several layers, it may be far away in one of them."""
        return ZERO if len(self.source.layers) == 1 and self._way.gains_by_zero(clients) else None

    def gram(self, clients: Sequence[int], centre: int | None, only: Sequence[int] | None = None) -> Float:
        """One Gram matrix per layer in one pass: float32 inside a run of columns, float64 across runs."""
        return self._way.gram(clients, centre, only)

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """`||c_k||^2 - 2 <c_k, wbar> + ||wbar||^2` by layer."""
        return self._way.residuals(a, clients, centre, norms)

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`weights @ X`; clients of weight 0 are not read if possible."""
        return self._way.mix(weights, clients)

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """Sort each column of X (or of `mixing @ X`) and reduce it."""
        return self._way.reduce(rule, mixing, clients)

    def sign_counts(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Float:
        """(m, 3) how many judged coordinates of `mixing @ X - reference` are positive, zero and negative."""
        n = len(clients)
        width = max(64, BLOCK // n)
        by_layer = any(layer.follows for layer in self.source.layers)

        def process(block: Block) -> Float:
            if by_layer and self.source.layers[block.layer].follows:
                return np.zeros((n if mixing is None else len(mixing), 3))
            values = np.empty((n, block.width), block.dtype)
            self._way.fill(block, clients, values, reference)
            mixed = values
            if mixing is not None:
                mixed = np.zeros((len(mixing), block.width), block.dtype)
                multiply(mixing.astype(block.dtype), values, mixed)
            positive, negative = (mixed > 0).sum(axis=1), (mixed < 0).sum(axis=1)
            return np.stack([positive, block.width - positive - negative, negative], axis=1).astype(np.float64)

        counts = self._way.run(process, width, n, by_layer=by_layer)
        return sum(counts, np.zeros((n if mixing is None else len(mixing), 3)))

    def coordinates(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Coordinates:
        """Whole updates by judged layer."""
        return coordinates(self.source, clients, reference, mixing)

    def statistics(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Sequence[Statistics]:
        """BatchNorm's running means and variances of the mixtures, by layer."""
        return statistics(self.source, clients, reference, mixing)

    def distances(self, clients: Sequence[int], values: Sequence[Any]) -> Float:
        """(k, leaves) squared distances to the result."""
        return explain.on_host(self.source, clients, values, max(64, BLOCK // len(clients)))

    def fault(self, client: int) -> str | None:
        """Read the client's values until one is NaN, infinite or too large."""
        for block in blocks(self.leaves, BLOCK):
            values = np.empty((1, block.width), dtype=block.dtype)
            self._way.fill(block, [client], values, None)
            wrong = ~(np.abs(values[0]) <= LARGEST[block.dtype.__name__])
            if wrong.any():
                column = int(np.argmax(wrong))
                segment = next(s for s in block.segments if s.offset <= column < s.offset + s.stop - s.start)
                at = segment.start + column - segment.offset
                return describe_fault(float(values[0, column]), self.leaves[segment.leaf], at)
        return None


def describe_fault(value: float, leaf: Leaf, at: int) -> str:
    """The reason for a client's exclusion: which value, where, and why it cannot be used."""
    where = f"{tensor_label(leaf.name)} at flat index {at}"
    if np.isnan(value):
        return f"{where} is NaN"
    if np.isinf(value):
        return f"{where} is infinite ({value})"
    limit = LARGEST[COMPUTE[leaf.spec.dtype].__name__]
    return f"{where} is {value:.6g}: above {limit:g} distances may overflow"
