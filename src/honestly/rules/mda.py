"""Minimum diameter averaging, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.result import Float
from honestly.rules._lib.subsets import Subset, SubsetRule, concentrate, lightest_subset
from honestly.rules.rule import squared_distances


@dataclass(frozen=True, kw_only=True)
class MDA(SubsetRule):
    """The mean of the K - f clients with the smallest diameter.

        S = argmin over |S| = K - f of  max_{k, j in S} ||w_k - w_j||;    value = wbar_S

    Among subsets of the same diameter the one with the smallest variance is taken (ByzFL takes the first). It takes the
    largest distance where `MinimumVariance` takes the sum of squares; the search is the same. It stops after `work`
    elementary operations (some 5e-8 s each): then the best subset found is returned and `status` is STEP_LIMIT.

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.
        work: the limit of the search.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [1.5], [2.0], [50.0]])
        >>> MDA(f=2).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.5]])

    Reference: El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018.
    """

    work: int = 50_000_000

    name: ClassVar[str] = "mda"
    summary: ClassVar[str] = "mean of the K - f clients with the smallest diameter, exact for small K"
    reference: ClassVar[str] = "El Mhamdi et al., ICML 2018"

    def search(self, gram: Float, m: int) -> tuple[Subset, dict[str, float]]:
        """By bisection over the distances."""
        D = squared_distances(gram)
        subset = smallest_diameter(D, m, self.work)
        return subset, {"diameter": float(np.sqrt(D[np.ix_(subset.members, subset.members)].max()))}


def smallest_diameter(D: Float, m: int, work: int) -> Subset:
    """The m-subset with the smallest largest D, of these the one with the smallest sum."""
    members = concentrate(D, m)
    # Bisection over the distances that occur: is there a subset without a pair farther apart than this one?
    candidates: Float = np.unique(D)
    reach: Float = np.sort(D, axis=1)[:, m - 1]  # a member has m - 1 others within the diameter
    low = _place(candidates, float(np.partition(reach, m - 1)[m - 1]))
    high = _place(candidates, float(D[np.ix_(members, members)].max()))
    nodes = spent = 0
    exact = True
    while low < high and exact:
        middle = (low + high) // 2
        apart = (candidates[middle] < D).astype(np.float64)
        subset = lightest_subset(apart, m, work - spent, start=members, ceiling=0.5)
        nodes, spent, exact = nodes + subset.nodes, spent + subset.work, subset.exact
        if subset.weight == 0.0:
            members, high = subset.members, middle
        else:
            low = middle + 1
    # Pairs beyond the diameter weigh more than any subset without them.
    W = np.where(candidates[high] < D, D.sum() + 1.0, D)
    last = lightest_subset(W, m, work - spent, start=members)
    return Subset(last.members, last.weight, exact and last.exact, nodes + last.nodes, spent + last.work)


def _place(ranked: Float, value: float) -> int:
    """The index of a value in sorted values."""
    return int(np.count_nonzero(ranked < value))
