"""Divide and conquer: drops the clients that stretch the main direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.minority import Minority
from honestly.rules._lib.neighbours import smallest
from honestly.rules._lib.spectra import centre_gram, top_eigenpair
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class DnC(Minority, Rule):
    """The mean of the clients that lie least far along the main direction of the centred updates.

        v = top right singular vector of C, C_k = w_k - mean;    score_k = <C_k, v>^2
        value = mean of the K - ceil(share * f) clients with the smallest scores

    Convention: all coordinates are used, because the Gram matrix gives the spectrum at any size; the authors repeat the
    step on random subsets of coordinates to save time, and intersect what is kept. So nothing is random here.
    Only one direction is used: of two attackers in different directions, the larger hides the other.

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.
        share: how many clients are dropped, relative to f.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [2.0], [50.0]])
        >>> DnC(f=1).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.]])

    Reference: Shejwalkar and Houmansadr, Manipulating the Byzantine, NDSS 2021.
    """

    share: float = setting(1.0, least=0.0, most=2.0)

    name: ClassVar[str] = "dnc"
    summary: ClassVar[str] = "drops the clients that stretch the main direction"
    reference: ClassVar[str] = "Shejwalkar and Houmansadr, NDSS 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for the smallest scores."""
        K = geometry.K
        self.check(K)
        keep = K - int(np.ceil(self.share * self.f - 1e-9))  # 1.1 * 50 is 55.00000000000001: the caller meant 55
        M = centre_gram(geometry.gram, np.full(K, 1.0 / K))
        _, u = top_eigenpair(M)
        scores = u * u  # <C_k, v>^2 = eigenvalue * u_k^2
        weights = np.zeros(K)
        weights[smallest(scores, keep)] = 1.0 / keep
        return Mix.of_weights(weights, diagnostics={"scores": scores})
