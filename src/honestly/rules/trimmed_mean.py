"""The coordinate-wise trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from honestly.rules.rule import AveragingRule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(AveragingRule):
    """The mean of each coordinate without its g smallest and g largest values.

        value_i = 1/(K - 2g) * sum_{g < r <= K - g} w_(r)i,    g = floor(trim * K)  or  g = f

    The extremes are never added and then subtracted: 1e10 among ones would cancel everything else.

    Args:
        trim: the fraction dropped at each end, below 1/2.
        f: the number dropped at each end; if given, it replaces `trim`.

    Example:
        >>> import numpy as np
        >>> ranked = np.sort([[1.0], [2.0], [3.0], [4.0], [1e12]], axis=0)
        >>> first, last = TrimmedMean(trim=0.2).ranks(5)
        >>> TrimmedMean(trim=0.2).reduce(ranked[first:last], np)
        array([3.])

    Reference: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
    """

    trim: float = setting(0.2, least=0.0, below=0.5)
    f: int | None = setting(None, whole=True, least=0)

    name: ClassVar[str] = "trimmed_mean"
    summary: ClassVar[str] = "mean of each coordinate without its extremes"
    reference: ClassVar[str] = "Yin et al., ICML 2018"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})
    bound: ClassVar[str] = "2f+1"

    def minimum(self) -> int:
        """2f + 1 if f was given."""
        return 1 if self.f is None else 2 * self.f + 1

    def trim_count(self, m: int) -> int:
        """g, the number of values dropped at each end of m."""
        if self.f is not None:
            return self.f
        # 0.29 * 100 is 28.999999999999996: the caller meant 29.
        return min(int(self.trim * m + 1e-9), (m - 1) // 2)

    def ranks(self, m: int) -> tuple[int, int]:
        """The rows that are kept."""
        g = self.trim_count(m)
        return g, m - g
