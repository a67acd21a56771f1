"""Comparative gradient elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.minority import Minority
from honestly.rules._lib.neighbours import smallest
from honestly.rules.rule import Geometry, Mix, Rule


@dataclass(frozen=True, kw_only=True)
class CGE(Minority, Rule):
    """The mean of the K - f clients with the shortest updates.

        value = mean of the K - f clients with the smallest ||w_k - reference||

    Convention: the mean, where Gupta and Vaidya write the sum. It does not notice a short update in a wrong direction.

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0], [-1.0], [3.0], [50.0]])
        >>> CGE(f=1).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.]])

    Reference: Gupta and Vaidya, Fault-Tolerance in Distributed Optimization: The Case of Redundancy, PODC 2020.
    """

    name: ClassVar[str] = "cge"
    summary: ClassVar[str] = "mean of the K - f clients with the shortest updates"
    reference: ClassVar[str] = "Gupta and Vaidya, PODC 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"f", "reference"})

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for the K - f smallest norms."""
        K = geometry.K
        self.check(K)
        weights = np.zeros(K)
        weights[smallest(np.diagonal(geometry.gram_about_reference), K - self.f)] = 1.0 / (K - self.f)
        return Mix.of_weights(weights)
