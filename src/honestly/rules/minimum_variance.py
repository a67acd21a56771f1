"""The subset of K - f clients with the smallest variance, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from honestly.result import Float
from honestly.rules._lib.subsets import Subset, SubsetRule, lightest_subset
from honestly.rules.rule import squared_distances


@dataclass(frozen=True, kw_only=True)
class MinimumVariance(SubsetRule):
    """The mean of the K - f clients that lie closest around their own mean (the set form of Karakulev et al.).

        S = argmin over |S| = K - f of  sum_{k in S} ||w_k - wbar_S||^2 = 1/(K - f) * sum_{k < j in S} ||w_k - w_j||^2
        value = wbar_S

    Solved exactly by branch and bound. For every set B of K - f clients, with M = f (their Proposition 1):

        ||wbar_S - wbar_B||^2 <= kappa/(K - M) * sum_{k in B} ||w_k - wbar_B||^2,    kappa = 4 (1 + M/(K - 2M))

    The search is exponential in the worst case. It stops after `work` elementary operations (some 5e-8 s each): then
    the best subset found is returned, `status` is STEP_LIMIT and `diagnostics["exact"]` is False. With the default, any
    20 clients are solved for any f; far attackers or small f allow many more.

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.
        work: the limit of the search.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [1.5], [2.0], [50.0]])
        >>> MinimumVariance(f=2).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.5]])

    Reference: Karakulev et al., Bayesian Robust Aggregation for Federated Learning, 2025.
    """

    work: int = 50_000_000

    name: ClassVar[str] = "minimum_variance"
    summary: ClassVar[str] = "mean of the K - f clients with the smallest variance, exact for small K"
    reference: ClassVar[str] = "Karakulev et al. 2025, Proposition 1"

    def search(self, gram: Float, m: int) -> tuple[Subset, dict[str, float]]:
        """The lightest subset by squared distances."""
        subset = lightest_subset(squared_distances(gram), m, self.work)
        return subset, {"variance": subset.weight / m / m}
