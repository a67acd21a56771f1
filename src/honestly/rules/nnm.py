"""Nearest-neighbour mixing, a pre-aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.result import Float
from honestly.rules._lib.minority import Minority
from honestly.rules._lib.neighbours import smallest
from honestly.rules.rule import Geometry, Mixer, squared_distances


@dataclass(frozen=True, kw_only=True)
class NNM(Minority, Mixer):
    """Replaces each client by the mean of its K - f nearest clients, itself included.

        w'_k = 1/(K - f) * sum of the K - f clients nearest to w_k

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [9.0]])
        >>> NNM(f=1).mix(GramGeometry(X @ X.T)) @ X
        array([[0.5],
               [0.5],
               [5. ]])

    Reference: Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023.
    """

    name: ClassVar[str] = "nnm"
    summary: ClassVar[str] = "each client becomes the mean of its K - f nearest"
    reference: ClassVar[str] = "Allouah et al., AISTATS 2023"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})

    def mix(self, geometry: Geometry) -> Float:
        """(K, K): row k has 1/(K - f) for the K - f nearest to client k."""
        K = geometry.K
        self.check(K)
        D = squared_distances(geometry.gram)
        np.fill_diagonal(D, -1.0)  # a client is its own nearest, before any copy of it
        A = np.zeros((K, K))
        np.put_along_axis(A, smallest(D, K - self.f), 1.0 / (K - self.f), axis=1)
        return A
