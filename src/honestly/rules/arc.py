"""Adaptive robust clipping, a pre-aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.result import Float
from honestly.rules._lib.clipping import clip_factors, norms
from honestly.rules._lib.minority import Minority
from honestly.rules.rule import Geometry, Mixer


@dataclass(frozen=True, kw_only=True)
class ARC(Minority, Mixer):
    """Shortens the k longest updates to the length of the next one.

        k = floor(2 f/K (K - f));    w'_j = reference + u_j min(1, c / ||u_j||),    c the (k+1)-th largest ||u_j||

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0], [2.0], [-8.0]])
        >>> ARC(f=1).mix(GramGeometry(X @ X.T)) @ X
        array([[ 1.],
               [ 2.],
               [-2.]])

    Reference: Allouah et al., Adaptive Gradient Clipping for Robust Federated Learning, ICLR 2025.
    """

    name: ClassVar[str] = "arc"
    summary: ClassVar[str] = "the longest updates shortened to the next longest"
    reference: ClassVar[str] = "Allouah et al., ICLR 2025"
    needs: ClassVar[frozenset[str]] = frozenset({"f", "reference"})

    def mix(self, geometry: Geometry) -> Float:
        """(K, K) diagonal of the clipping factors."""
        K = geometry.K
        self.check(K)
        lengths = norms(geometry.gram_about_reference)
        k = 2 * self.f * (K - self.f) // K
        return np.diag(clip_factors(lengths, float(np.sort(lengths)[K - k - 1])))
