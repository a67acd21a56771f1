"""Multi-Krum: the mean of the clients with the closest neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from honestly.rules._lib.neighbours import krum_order
from honestly.rules.rule import Geometry, Mix, Rule, require, squared_distances
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Rule):
    """The mean of the `keep` clients whose K - f - 2 nearest neighbours are nearest.

        score_k = sum of the K - f - 2 smallest ||w_k - w_j||^2, j != k;    value = mean of the `keep` lowest scores

    Conventions: K - f - 2 neighbours (Blanchard et al.; ByzFL takes K - f - 1) and K - f clients kept by default. The
    proof asks for K >= 2f + 3; any f below a majority is accepted, because published experiments use it. With
    K = 2f + 1, f copies of a lie win: among them the f - 1 distances that are summed are 0.

    Args:
        f: the number of attackers to withstand; K >= 2f + 1 and K >= f + 3.
        keep: how many clients are averaged, at most K - f, which is the default. If exclusions leave fewer, K - f.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [1.5], [2.0], [50.0]])
        >>> MultiKrum(f=1, keep=2).mix(GramGeometry(X @ X.T)).matrix
        array([[0. , 0.5, 0.5, 0. , 0. ]])

    Reference: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.
    """

    f: int = field(metadata={"whole": True, "least": 0})
    keep: int | None = setting(None, whole=True, least=1)

    name: ClassVar[str] = "multi_krum"
    summary: ClassVar[str] = "mean of the clients whose neighbours are nearest"
    reference: ClassVar[str] = "Blanchard et al., NeurIPS 2017"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})
    bound: ClassVar[str] = "max(2f+1, f+3)"

    def minimum(self) -> int:
        """A majority beyond f, and one neighbour for each."""
        return max(2 * self.f + 1, self.f + 3)

    def check(self, K: int) -> None:
        """ValueError if f or keep do not fit K clients."""
        require(self, K)
        if self.keep is not None and self.keep > K - self.f:
            raise ValueError(f"{self!r} cannot keep more than K - f = {K - self.f} of {K} clients")

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for the `keep` smallest scores."""
        K = geometry.K
        require(self, K)  # not `check`: after exclusions there may be fewer clients than `keep`
        keep = min(self.keep or K, K - self.f)
        order, scores = krum_order(squared_distances(geometry.gram), K - self.f - 2)
        weights = np.zeros(K)
        weights[order[:keep]] = 1.0 / keep
        return Mix.of_weights(weights, diagnostics={"scores": scores, "keep": keep})
