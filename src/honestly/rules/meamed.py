"""Mean around the median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from honestly.rules._lib.minority import Minority
from honestly.rules.rule import NearestRule


@dataclass(frozen=True, kw_only=True)
class Meamed(Minority, NearestRule):
    """The mean of the K - f values of each coordinate that are nearest to its median.

        value_i = mean of the K - f values w_ki nearest to median(w_1i, ..., w_Ki)

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.

    Example:
        >>> import numpy as np
        >>> ranked = np.array([[0.0], [1.0], [2.0], [4.0], [50.0]])
        >>> Meamed(f=2).reduce(ranked, np)
        array([1.])

    Reference: Xie et al., Generalized Byzantine-tolerant SGD, 2018.
    """

    name: ClassVar[str] = "meamed"
    summary: ClassVar[str] = "mean of the values of each coordinate nearest to its median"
    reference: ClassVar[str] = "Xie et al., 2018"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})

    def nearest(self, m: int) -> int:
        """All but f."""
        return m - self.f
