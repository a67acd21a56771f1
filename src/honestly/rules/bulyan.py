"""Bulyan: iterated Krum, then the values nearest to the median of the selected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.rule import Geometry, Mix, NearestRule, squared_distances


@dataclass(frozen=True, kw_only=True)
class Bulyan(NearestRule):
    """Selects K - 2f clients by iterated Krum, then averages in each coordinate the K - 4f values nearest the median.

        S = theta = K - 2f clients: the Krum choice of those left, again and again
        value_i = mean of the theta - 2f values of {w_ki, k in S} nearest to their median

    Convention: among n clients left, Krum sums the max(1, n - f - 2) nearest squared distances;
    of two with the same sum (each other's only neighbour) the one with the smaller median distance is taken.

    Args:
        f: the number of attackers to withstand; K >= 4f + 3.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [2.0], [3.1], [4.3], [5.6], [7.0], [50.0]])
        >>> mix = Bulyan(f=1).mix(GramGeometry(X @ X.T))
        >>> Bulyan(f=1).reduce(np.sort(mix.matrix @ X, axis=0), np)
        array([4.33333333])

    Reference: El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018.
    """

    f: int = field(metadata={"whole": True, "least": 0})

    name: ClassVar[str] = "bulyan"
    summary: ClassVar[str] = "iterated Krum, then the values nearest to the median"
    reference: ClassVar[str] = "El Mhamdi et al., ICML 2018"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})
    bound: ClassVar[str] = "4f+3"
    gram_needed: ClassVar[bool] = True

    def minimum(self) -> int:
        """4f + 3."""
        return 4 * self.f + 3

    def mix(self, geometry: Geometry) -> Mix:
        """(K - 2f, K): one selected client in each row, in the order of the clients."""
        K = geometry.K
        self.check(K)
        selected = np.sort(iterate_krum(squared_distances(geometry.gram), self.f, K - 2 * self.f))
        return Mix(np.eye(K)[selected], diagnostics={"selected": selected})

    def nearest(self, m: int) -> int:
        """theta - 2f of the theta selected."""
        return m - 2 * self.f


def iterate_krum(D: Float, f: int, theta: int) -> npt.NDArray[np.intp]:
    """`theta` clients, each the Krum choice among those not chosen before."""
    K = len(D)
    others = D.copy()
    np.fill_diagonal(others, np.inf)
    # Each row sorted once; a chosen client is struck from every row, so sums are always fresh and exact.
    order = np.argsort(others, axis=1, kind="stable")[:, : K - 1]
    near = np.take_along_axis(others, order, axis=1)
    left = np.arange(K)
    chosen = np.empty(theta, dtype=np.intp)
    for step in range(theta):
        count = max(1, len(left) - f - 2)
        typical = near[:, near.shape[1] // 2] if near.shape[1] else left  # breaks ties of two nearest neighbours
        best = int(np.lexsort((typical, near[:, :count].sum(axis=1)))[0])
        chosen[step] = left[best]
        if step + 1 < theta:
            left, near, order = np.delete(left, best), np.delete(near, best, 0), np.delete(order, best, 0)
            stay = order != chosen[step]
            near, order = near[stay].reshape(len(left), -1), order[stay].reshape(len(left), -1)
    return chosen
