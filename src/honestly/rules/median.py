"""The coordinate-wise median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from honestly.rules.rule import AveragingRule


@dataclass(frozen=True, kw_only=True)
class Median(AveragingRule):
    """The median of each coordinate; the mean of the two middle values for an even number of clients, as in NumPy.

        value_i = median(w_1i, ..., w_Ki)

    Example:
        >>> import numpy as np
        >>> ranked = np.sort([[1.0, 5.0], [2.0, -3.0], [1e12, 4.0]], axis=0)
        >>> first, last = Median().ranks(3)
        >>> Median().reduce(ranked[first:last], np)
        array([2., 4.])

    Reference: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
    """

    name: ClassVar[str] = "median"
    summary: ClassVar[str] = "median of each coordinate"
    reference: ClassVar[str] = "Yin et al., ICML 2018"

    def ranks(self, m: int) -> tuple[int, int]:
        """The one or two middle rows."""
        return (m - 1) // 2, m // 2 + 1
