"""Mean around the median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from honestly.rules.base import ColumnRule
from honestly.rules.settings import integer
from honestly.rules.windows import mean_nearest_to_median


@dataclass(frozen=True, kw_only=True)
class Meamed(ColumnRule):
    """The mean of the K - f values of each coordinate that are nearest to its median.

        value_i = mean of the K - f values w_ki nearest to median(w_1i, ..., w_Ki)

    Arguments:
        f: the number of attackers to withstand; K >= 2f + 1.

    Example:
        >>> import numpy as np
        >>> ranked = np.array([[0.0], [1.0], [2.0], [4.0], [50.0]])
        >>> Meamed(f=2).reduce(ranked, np)
        array([1.])

    Reference: Xie et al., Generalized Byzantine-tolerant SGD, 2018.
    """

    f: int

    name: ClassVar[str] = "meamed"
    summary: ClassVar[str] = "mean of the values of each coordinate nearest to its median"
    reference: ClassVar[str] = "Xie et al., 2018"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})
    bound: ClassVar[str] = "2f+1"

    def __post_init__(self) -> None:
        integer(self, "f", self.f, least=0)

    def minimum(self) -> int:
        """2f + 1."""
        return 2 * self.f + 1

    def reduce(self, ranked: Any, xp: Any) -> Any:
        """The mean of the K - f values nearest to the median."""
        return mean_nearest_to_median(ranked, ranked.shape[0] - self.f, xp)
