"""The mean of the clients nearest to their medoid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from honestly.rules._lib.neighbours import smallest
from honestly.rules.rule import Geometry, Mix, Rule, squared_distances


@dataclass(frozen=True, kw_only=True)
class MedoidMean(Rule):
    """The mean of the K - f clients nearest to the medoid, the client with the smallest sum of distances.

        m = argmin_k sum_j ||w_k - w_j||;    value = 1/(K - f) * sum of the K - f clients nearest to w_m

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [2.0], [50.0]])
        >>> MedoidMean(f=1).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.]])

    Reference: an example; name the paper here.
    """

    f: int = field(metadata={"whole": True, "least": 0})

    name: ClassVar[str] = "medoid_mean"
    summary: ClassVar[str] = "mean of the clients nearest to the medoid"
    reference: ClassVar[str] = "an example"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})
    bound: ClassVar[str] = "2f+1"

    def minimum(self) -> int:
        """2f + 1."""
        return 2 * self.f + 1

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for the K - f nearest to the medoid."""
        K = geometry.K
        self.check(K)
        D = squared_distances(geometry.gram)
        medoid = int(np.argmin(np.sqrt(D).sum(axis=1)))
        weights = np.zeros(K)
        weights[smallest(D[medoid], K - self.f)] = 1.0 / (K - self.f)
        return Mix.of_weights(weights, diagnostics={"medoid": medoid})
