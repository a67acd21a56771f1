"""Median-based z-scores, with which AlignIns and LASA find outliers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from honestly.result import Float


def median_z(values: Float) -> Float:
    """`|x_k - median| / standard deviation`; 0 where all are equal, rounding apart.

    Rounded to nine digits: with two values both scores are 1, and the last bit must not decide who is below 1.

    Example:
        >>> median_z(np.array([1.0, 1.0, 4.0])).round(3)
        array([0.   , 0.   , 2.121])
    """
    apart = np.abs(values - np.median(values))
    spread = float(values.std())
    if not spread > 1e-12 * float(np.abs(values).max(initial=0.0)):
        return np.zeros(len(values))
    return np.round(apart / spread, 9)


def largest(magnitudes: Float, share: float) -> npt.NDArray[np.bool_]:
    """(K, d) mask of a share of each row's entries, the largest, at least one; ties with the smallest are included."""
    d = magnitudes.shape[1]
    count = min(max(int(share * d), 1), d)
    return magnitudes >= np.partition(magnitudes, d - count, axis=1)[:, d - count, None]
