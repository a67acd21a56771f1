"""MoNNA: the neighbours of a trusted client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.result import AggregationError, ClientId
from honestly.rules._lib.minority import Minority
from honestly.rules._lib.neighbours import smallest
from honestly.rules.rule import Geometry, Mix, Rule


@dataclass(frozen=True, kw_only=True)
class MoNNA(Minority, Rule):
    """The mean of the K - f clients nearest to one that is trusted, itself included.

        value = 1/(K - f) * sum of the K - f clients nearest to w_trusted

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.
        trusted: the trusted client: its index, or its id if the updates are a mapping. If it is excluded,
            AggregationError is raised.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [2.0], [50.0]])
        >>> MoNNA(f=1, trusted=1).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.]])

    Reference: Farhadkhani et al., Robust Collaborative Learning with Linear Gradient Overhead, ICML 2023.
    """

    trusted: ClientId = 0

    name: ClassVar[str] = "monna"
    summary: ClassVar[str] = "mean of the clients nearest to a trusted one"
    reference: ClassVar[str] = "Farhadkhani et al., ICML 2023"
    needs: ClassVar[frozenset[str]] = frozenset({"f", "trusted client"})
    streams: ClassVar[bool] = True

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for the K - f nearest."""
        K = geometry.K
        self.check(K)
        ids = list(geometry.ids) or list(range(K))
        if self.trusted not in ids:
            raise AggregationError(f"{self!r}: the trusted client {self.trusted!r} is not among the usable {ids[:20]}")
        at = np.zeros(K)
        at[ids.index(self.trusted)] = 1.0
        distances = geometry.residuals(at)
        distances[ids.index(self.trusted)] = -1.0  # itself before any copy of it
        weights = np.zeros(K)
        weights[smallest(distances, K - self.f)] = 1.0 / (K - self.f)
        return Mix.of_weights(weights)
