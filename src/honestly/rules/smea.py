"""Smallest maximum eigenvalue averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules._lib.subsets import Subset, SubsetRule, concentrate
from honestly.rules.rule import squared_distances

# Subsets whose eigenvalues are computed together.
_CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class SMEA(SubsetRule):
    """The mean of the K - f clients whose covariance has the smallest top eigenvalue.

        S = argmin over |S| = K - f of  lambda_max(1/|S| sum_{k in S} (w_k - wbar_S)(w_k - wbar_S)^T);    value = wbar_S

    Solved exactly by branch and bound: another member never lowers the top eigenvalue of the scatter. The search stops
    after `work` elementary operations (some 1e-8 s each): then the best subset found is returned, `status` is
    STEP_LIMIT and `diagnostics["exact"]` is False. With the default, 20 clients are solved on every population of
    the tests.

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.
        work: the limit of the search.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [1.5], [2.0], [50.0]])
        >>> SMEA(f=2).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.5]])

    Reference: Allouah et al., On the Privacy-Robustness-Utility Trilemma in Distributed Learning, ICML 2023.
    """

    work: int = 200_000_000

    name: ClassVar[str] = "smea"
    summary: ClassVar[str] = "mean of the K - f clients with the smallest top eigenvalue, exact for small K"
    reference: ClassVar[str] = "Allouah et al., ICML 2023"

    def search(self, gram: Float, m: int) -> tuple[Subset, dict[str, float]]:
        """By branch and bound over growing subsets."""
        subset = smallest_eigenvalue(gram, m, self.work)
        return subset, {"eigenvalue": subset.weight / m}


def top_scatter(G: Float, subsets: npt.NDArray[np.intp]) -> Float:
    """The top eigenvalue of the scatter `sum (w_k - mean)(w_k - mean)^T` of each row of (n, s) indices."""
    S = G[subsets[:, :, None], subsets[:, None, :]]
    means = S.mean(axis=2, keepdims=True)
    centred = S - means - np.swapaxes(means, 1, 2) + means.mean(axis=1, keepdims=True)
    return np.maximum(np.linalg.eigvalsh(centred)[:, -1], 0.0)


def smallest_eigenvalue(G: Float, m: int, work: int) -> Subset:
    """The m-subset with the smallest top eigenvalue of its scatter."""
    K = len(G)
    D = squared_distances(G)
    members = concentrate(D, m)
    best = float(top_scatter(G, members[None, :])[0])
    if m == K or m == 1:
        return Subset(members, best, True, 1, 0)
    # The farthest first: subsets with two of them are pruned when they are small.
    rank = np.argsort(-D[:, members].sum(axis=1), kind="stable")
    H = G[np.ix_(rank, rank)]
    stack = [np.arange(K)[: K - m + 1, None]]
    nodes = spent = 0
    while stack:
        partial = stack.pop()
        s = partial.shape[1]
        # Every way to add a member further down the order that leaves enough to complete the subset.
        following = np.arange(K)[None, :]
        fits = (following > partial[:, -1:]) & (following <= K - m + s)
        row, new = np.nonzero(fits)
        grown = np.concatenate([partial[row], new[:, None]], axis=1)
        nodes += len(grown)
        spent += len(grown) * (s + 1) ** 2 * 8 + 1000 * len(grown)
        if spent > work:
            return Subset(members, best, False, nodes, spent)
        value = top_scatter(H, grown)
        if s + 1 == m:
            i = int(np.argmin(value))
            if value[i] < best:
                best, members = float(value[i]), np.sort(rank[grown[i]])
            continue
        keep = np.flatnonzero(value < best * (1.0 - 1e-12))  # a subset that is better only by rounding is not explored
        keep = keep[np.argsort(-value[keep], kind="stable")]
        stack.extend(grown[keep[i : i + _CHUNK]] for i in range(0, len(keep), _CHUNK))
    return Subset(members, best, True, nodes, spent)
