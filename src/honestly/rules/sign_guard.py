"""SignGuard: filters by the lengths and by the signs of the updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.clipping import clip_factors, norms
from honestly.rules._lib.clusters import largest_by_mean_shift
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class SignGuard(Rule):
    """The clipped mean of clients whose length is usual and whose shares of signs are those of the largest cluster.

        by length:  lower <= ||u_k|| / median_j ||u_j|| <= upper
        by signs:   mean shift on the shares of positive, zero and negative coordinates of u_k; the largest cluster
        value = reference + mean over clients in both of u_k min(1, median_j ||u_j|| / ||u_k||)

    Conventions: signs of all coordinates are counted, where the authors draw a tenth at random; the features are
    the signs alone (their plain SignGuard). If no client passes both filters, those that pass by length are taken.

    Args:
        lower, upper: bounds of the length relative to the median.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0, 2.0, 1.0], [1.0, 1.0, 2.0], [2.0, 1.0, 1.0], [-1.0, -1.0, -2.0], [90.0, 90.0, 90.0]])
        >>> signs = lambda: np.stack([(X > 0).sum(1), (X == 0).sum(1), (X < 0).sum(1)], axis=1)
        >>> SignGuard().mix(GramGeometry(X @ X.T, signs=signs)).matrix.round(3)
        array([[0.333, 0.333, 0.333, 0.   , 0.   ]])

    Reference: Xu et al., Byzantine-Robust FL through Collaborative Malicious Gradient Filtering, ICDCS 2022.
    """

    lower: float = setting(0.1, least=0.0, most=1.0)
    upper: float = setting(3.0, least=2.0)  # the upper of two middle lengths is up to twice the median

    name: ClassVar[str] = "sign_guard"
    summary: ClassVar[str] = "clients with usual lengths and usual shares of signs"
    reference: ClassVar[str] = "Xu et al., ICDCS 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"reference", "signs"})

    def mix(self, geometry: Geometry) -> Mix:
        """Clipping factors of the clients that pass, over their number."""
        lengths = norms(geometry.gram_about_reference)
        median = float(np.median(lengths))
        usual = (lengths >= self.lower * median) & (lengths <= self.upper * median)
        counts = geometry.sign_counts()
        alike = np.zeros(geometry.K, dtype=bool)
        alike[largest_by_mean_shift(counts / counts.sum(axis=1, keepdims=True))] = True
        passed = usual & alike if (usual & alike).any() else usual
        weights = np.where(passed, clip_factors(lengths, median), 0.0) / passed.sum()
        return Mix.of_weights(weights, diagnostics={"by_length": usual, "by_signs": alike})
