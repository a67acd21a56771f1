"""The plain or size-weighted mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from honestly.result import Float
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting
from honestly.rules.sizes import reported_sizes, size_shares


@dataclass(frozen=True, kw_only=True)
class Mean(Rule):
    """The mean of the clients (FedAvg): the yardstick, which a single liar can move anywhere.

        value = sum_k a_k w_k,    a_k = 1/K  or  a_k = s_k / sum_j s_j

    Args:
        sizes: "ignore" gives every client the same weight, whatever size it reports. "capped" weighs by the reported
            sizes, none of which counts for more than `cap` times the median reported size. "trusted" uses the sizes
            as reported. A size that is NaN, infinite or negative gives its own client weight 0 and affects no other.
        cap: the multiple of the median size at which "capped" stops.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> clients = GramGeometry(np.eye(4), sizes=np.array([10.0, 10.0, 20.0, 1e9]))
        >>> Mean(sizes="capped", cap=2.0).mix(clients).matrix
        array([[0.14285714, 0.14285714, 0.28571429, 0.42857143]])

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
    """

    sizes: Literal["ignore", "capped", "trusted"] = setting("ignore", among=("ignore", "capped", "trusted"))
    cap: float = setting(3.0, least=1.0)

    name: ClassVar[str] = "mean"
    summary: ClassVar[str] = "mean of the clients (FedAvg); sizes ignored, capped or trusted"
    reference: ClassVar[str] = "McMahan et al., AISTATS 2017"
    needs: ClassVar[frozenset[str]] = frozenset()
    streams: ClassVar[bool] = True
    gram_needed: ClassVar[bool] = False
    uses_sizes: ClassVar[bool] = True

    def mix(self, geometry: Geometry) -> Mix:
        """Weights from the sizes alone."""
        K = geometry.K
        if self.sizes == "ignore":
            return Mix.of_weights(np.full(K, 1.0 / K))
        claims = s = reported_sizes(self, geometry)
        if self.sizes == "capped":
            half = float(np.median(s[s > 0] / 2))  # halved: the mean of two sizes near the largest float is finite
            s = np.minimum(s, 2 * self.cap * half)
        s = s / s.max()  # sizes near the largest float must not overflow the sum
        return Mix.of_weights(s / s.sum(), diagnostics=size_shares(claims, s))

    def foresee(self, K: int, d: int, layers: Float | None) -> Float | None:
        """Equal weights, unless sizes count."""
        return np.full(K, 1.0 / K) if self.sizes == "ignore" else None
