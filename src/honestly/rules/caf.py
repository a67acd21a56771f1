"""The covariance-bound agnostic filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.result import Status
from honestly.rules._lib.minority import Minority
from honestly.rules._lib.spectra import centre_gram, top_eigenpair
from honestly.rules.rule import Geometry, Mix, Rule


@dataclass(frozen=True, kw_only=True)
class CAF(Minority, Rule):
    """Lowers weights along the main direction step by step, and returns the mean whose covariance was smallest.

        c = 1;   while sum c > K - 2f:
            mu = sum c_k w_k / sum c;   lambda, v = top eigenpair of sum c_k (w_k - mu)(w_k - mu)^T / sum c
            t_k = <v, w_k - mu>^2;   c_k <- c_k (1 - t_k / max t)
        value = the mu with the smallest lambda

    The maximum is taken over clients that still have weight, so each step removes at least one of them, and the loop
    ends after at most 2f + 1 steps. (If it were taken over all clients, a removed client could hold the maximum
    forever.) It also ends when the remaining clients coincide.

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [2.0], [50.0]])
        >>> (CAF(f=1).mix(GramGeometry(X @ X.T)).matrix @ X).round(2)
        array([[1.01]])

    Reference: Allouah et al., Towards Trustworthy Federated Learning with Untrusted Participants, ICML 2025.
    """

    name: ClassVar[str] = "caf"
    summary: ClassVar[str] = "the weighted mean with the smallest covariance along a filter"
    reference: ClassVar[str] = "Allouah et al., ICML 2025"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})

    def mix(self, geometry: Geometry) -> Mix:
        """The weights with the smallest top eigenvalue on the way."""
        K, G = geometry.K, geometry.gram
        self.check(K)
        c = np.ones(K)
        best, smallest = c / K, np.inf
        steps = 0
        while steps == 0 or c.sum() > K - 2 * self.f:
            steps += 1
            a = c / c.sum()
            M = centre_gram(G, a)
            root = np.sqrt(a)
            value, u = top_eigenpair(root[:, None] * M * root[None, :])
            if value < smallest:
                best, smallest = a, value
            p = np.where(c > 0, np.abs(M @ (root * u)), 0.0)  # |<v, w_k - mu>| up to a factor
            if value <= 0.0 or p.max() <= 0.0:
                break
            c = c * (1.0 - (p / p.max()) ** 2)
        return Mix.of_weights(best, status=Status.CONVERGED, steps=steps, diagnostics={"eigenvalue": float(smallest)})
