"""Weiszfeld's step towards the geometric median, which several rules take."""

from __future__ import annotations

from honestly.result import Float


def inverse_weights(distances: Float) -> Float:
    """Weights `b_k / sum_j b_j` with `b_k = 1 / distance_k`; the distances are positive.

    >>> import numpy as np
    >>> inverse_weights(np.array([1.0, 1.0, 2.0]))
    array([0.4, 0.4, 0.2])
    """
    pull = 1.0 / distances
    return pull / pull.sum()
