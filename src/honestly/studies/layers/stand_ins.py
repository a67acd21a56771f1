"""Coordinates for rules that need them, where a recording has inner products alone.

Any vectors with the recorded inner products will do for a rule that looks at distances. Coordinate-wise rules also
depend on the axes, which are lost. Here the axes are drawn at random: lengths and angles are exactly the recorded ones,
but real coordinates are sparser and have heavier tails. What such a rule does on stand-ins is an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from honestly.lazy import cached_property
from honestly.result import Float
from honestly.rules.geometry import Coordinates
from honestly.rules.rule import ColumnRule, Mixer, Rule
from honestly.studies.layers.space import Space

#: Columns that stand for all values of an update; a layer has at least as many as its inner products need.
COLUMNS = 4000


@dataclass(frozen=True)
class StandIns:
    """Coordinates of everything that can be sent in a `Space`.

    Attributes:
        basis: (b, c) columns of the basis, layer by layer.
        widths: (L,) how many of the c columns each layer has.
        sizes: (L,) how many values each layer has in the model.
        mean: (c,) the honest mean as a vector from the reference.
        honest: how many of the first rows are honest clients.
    """

    basis: Float
    widths: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    mean: Float
    honest: int

    @classmethod
    def of(cls, space: Space, rng: np.random.Generator, columns: int = COLUMNS) -> StandIns:
        """Random axes for a space."""
        parts: list[Float] = []
        for products, size in zip(space.products, space.sizes.tolist(), strict=True):
            values, vectors = np.linalg.eigh(products)
            rank = min(size, space.b)
            width = min(size, max(rank, round(columns * size / int(space.sizes.sum()))))
            axes = np.linalg.qr(rng.standard_normal((width, rank)))[0]
            parts.append(vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0.0)) @ axes.T)
        basis = np.concatenate(parts, axis=1)
        widths = np.array([part.shape[1] for part in parts])
        return cls(basis, widths, space.sizes, basis[space.n], space.H)

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """(L,) the first column of each layer."""
        return np.concatenate([[0], np.cumsum(self.widths)[:-1]])

    def clients(self, forged: Float) -> Float:
        """(K, c) updates of all clients, if attackers send coefficients (M, b) or (L, M, b)."""
        L, (b, c) = len(self.widths), self.basis.shape
        M = forged.shape[-2]
        sent = np.empty((self.honest + M, c))
        sent[: self.honest] = self.basis[: self.honest]
        for rows, part in zip(np.broadcast_to(forged, (L, M, b)), self._slices, strict=True):
            sent[self.honest :, part] = rows @ self.basis[:, part]
        return sent + self.mean

    @cached_property
    def _slices(self) -> list[slice]:
        return [slice(start, start + width) for start, width in zip(self.starts, self.widths, strict=True)]

    def signs(self, rows: Float) -> Float:
        """(m, 3) how many values of each row are > 0, == 0 and < 0; a column counts as the values it stands for."""
        each = np.repeat(self.sizes / self.widths, self.widths)
        return np.stack([(rows > 0) @ each, (rows == 0) @ each, (rows < 0) @ each], axis=1)

    def coordinates(self, rows: Float) -> Coordinates:
        """The rows by layer; the model itself is unknown, so the reference is 0."""
        return Coordinates([rows[:, part] for part in self._slices], [np.zeros(width) for width in self.widths])

    def displacement(self, rule: ColumnRule, rows: Float) -> Float:
        """(L,) squared distance to the honest mean of what the rule makes of these rows, in each layer."""
        first, last = rule.ranks(len(rows))
        value = np.asarray(rule.reduce(np.sort(rows, axis=0)[first:last], cast(Any, np)))
        return np.add.reduceat(np.square(value - self.mean), self.starts)


def needs_coordinates(parts: Iterable[type[Rule] | type[Mixer]]) -> bool:
    """Whether one of these rules and mixers looks at more than inner products."""
    return any(issubclass(part, ColumnRule) or {"signs", "updates"} & part.needs for part in parts)
