"""Krum: the client with the closest neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from honestly.rules._lib.neighbours import krum_order
from honestly.rules.rule import Geometry, Mix, Rule, squared_distances


@dataclass(frozen=True, kw_only=True)
class Krum(Rule):
    """The one client whose K - f - 2 nearest neighbours are nearest.

        score_k = sum of the K - f - 2 smallest ||w_k - w_j||^2, j != k;    value = w_argmin(score)

    Convention: K - f - 2 neighbours, as Blanchard et al. print it; ByzFL takes K - f - 1. Of two clients
    with the same score (each other's only neighbour) the one with the smaller median distance is taken.

    Args:
        f: the number of attackers to withstand; K >= 2f + 3.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [1.5], [2.0], [50.0]])
        >>> Krum(f=1).mix(GramGeometry(X @ X.T)).matrix
        array([[0., 0., 1., 0., 0.]])

    Reference: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.
    """

    f: int = field(metadata={"whole": True, "least": 0})

    name: ClassVar[str] = "krum"
    summary: ClassVar[str] = "the client whose neighbours are nearest"
    reference: ClassVar[str] = "Blanchard et al., NeurIPS 2017"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})
    bound: ClassVar[str] = "2f+3"

    def minimum(self) -> int:
        """2f + 3."""
        return 2 * self.f + 3

    def mix(self, geometry: Geometry) -> Mix:
        """Weight 1 for the client with the smallest score."""
        K = geometry.K
        self.check(K)
        order, scores = krum_order(squared_distances(geometry.gram), K - self.f - 2)
        weights = np.zeros(K)
        weights[order[0]] = 1.0
        return Mix.of_weights(weights, diagnostics={"scores": scores})
