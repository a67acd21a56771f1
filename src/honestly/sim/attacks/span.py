"""A rule's answer to clients that lie in the span of a few vectors, from a small Gram matrix instead of the updates.

Every client is a row of coefficients W over a basis B of n vectors, `X - mean = W B`, where `mean` is the honest mean.
The rule sees `G = W (B B^T) W^T`, and how far its weights A move the aggregate, `||A W B||^2`, follows from the same
n x n matrix: an answer costs what the rule costs on K x K numbers, whatever d is. Coordinate-wise rules get columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from honestly.engine import Pipeline
from honestly.result import Float
from honestly.rules.geometry import Coordinates
from honestly.rules.rule import ColumnRule, GramGeometry, Mix
from honestly.sim.attacks.vectors import pieces


@dataclass(frozen=True)
class Reaction:
    """What a rule did: the squared distance of its aggregate to the honest mean, and which clients it believed."""

    displacement: float
    mix: Mix
    weights: Float | None  # (K,) of the clients, through the mixers; None for coordinate-wise rules


@dataclass(frozen=True)
class Span:
    """The basis, by its inner products.

    Attributes:
        products: (n, n) Gram matrix of the basis.
        mean: index of the honest mean in the basis. Updates are differences to the reference, which is the zero vector
            and so has the coefficient -1 there.
        columns: (n, c) some or all columns of the basis, for rules that look at coordinates.
        column_means: (c,) the honest mean in these columns.
        d: number of coordinates for which the c columns stand.
        root: index of the trusted root update (about the mean) in the basis, if there is one.
        layers: sizes of the tensors that the columns are made of, where all columns are known; () for one layer.
    """

    products: Float
    mean: int
    columns: Float
    column_means: Float
    d: int
    root: int | None = None
    layers: Sequence[int] = ()

    def at(self, index: int) -> Float:
        """(n,) coefficients of one vector of the basis."""
        row = np.zeros(len(self.products))
        row[index] = 1.0
        return row

    def answer(self, pipeline: Pipeline, clients: Float, ranked: Float | None = None) -> Reaction:
        """What the rule, behind its mixers, answers to clients with these coefficients, (K, n).

        ``ranked`` are their sorted columns, where the caller has them and `Pipeline.reduces_clients`.
        """
        decision = pipeline.decide(self.geometry(clients))
        mix, rule = decision.mix, pipeline.rule
        if isinstance(rule, ColumnRule):
            if ranked is None:
                ranked = self.sort_columns(self._mix(decision.matrix, clients))
            first, last = rule.ranks(len(ranked))
            gap = np.asarray(rule.reduce(ranked[first:last], cast(Any, np))) - self.column_means
            return Reaction(float(gap @ gap) * self.d / max(len(gap), 1), mix, None)
        offset = self._mix(decision.matrix, clients)[0]
        return Reaction(max(float(offset @ self.products @ offset), 0.0), mix, decision.matrix[0])

    def geometry(self, clients: Float) -> GramGeometry:
        """All that a rule may know of these clients."""
        about = self._about_reference(clients)
        root = None
        if self.root is not None:
            root_row = self.at(self.root) + self.at(self.mean)
            root = np.vstack([about, root_row]) @ self.products @ root_row
        return GramGeometry(
            about @ self.products @ about.T,  # as the engine does when it is given a reference
            tuple(range(len(clients))),
            has_reference=True,
            root_products=root,
            mixed_signs=lambda mixing: self._signs(clients if mixing is None else self._mix(mixing, clients)),
            mixed_coordinates=lambda mixing: self._coordinates(about if mixing is None else mixing @ about),
        )

    def sort_columns(self, rows: Float) -> Float:
        """(m, c) sorted columns of these rows."""
        # sorting is several times faster along the last axis
        return np.ascontiguousarray(np.sort((rows @ self.columns + self.column_means).T, axis=1).T)

    def _mix(self, A: Float, rows: Float) -> Float:
        """Coefficients of `A X + (1 - A 1) reference`."""
        share = 1.0 - A.sum(axis=1)
        return A @ rows - share[:, None] * self.at(self.mean)

    def _about_reference(self, rows: Float) -> Float:
        """Coefficients of `w_k - reference` as differences of vectors (not of points about the mean)."""
        return rows + self.at(self.mean)

    def _coordinates(self, about: Float) -> Coordinates:
        """The columns that are known, by layer; the model itself is not part of the game."""
        scale = np.sqrt(self.d / max(self.columns.shape[1], 1))
        # `about` has the mean as a vector of the basis: its columns are those of the basis
        cuts = pieces(self.layers, self.columns.shape[1])
        rows = scale * (about @ self.columns)
        return Coordinates(tuple(rows[:, cut] for cut in cuts), tuple(np.zeros(cut.stop - cut.start) for cut in cuts))

    def _signs(self, rows: Float) -> Float:
        """(m, 3) counts of signs, on the columns that are known."""
        values = rows @ self.columns + self.column_means
        counts = np.stack([(values > 0).sum(1), (values == 0).sum(1), (values < 0).sum(1)], axis=1)
        return counts * (self.d / max(values.shape[1], 1))
