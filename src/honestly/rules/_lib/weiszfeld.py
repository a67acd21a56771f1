"""Weiszfeld's steps towards the geometric median, which several rules take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from honestly.result import Float
from honestly.rules._lib.neighbours import majority_mean
from honestly.rules.geometry import Geometry


def inverse_weights(distances: Float, pull: Float | float = 1.0) -> Float:
    """Weights `b_k / sum_j b_j` with `b_k = pull_k / distance_k`, along the last axis; the distances are positive.

    >>> import numpy as np
    >>> inverse_weights(np.array([1.0, 1.0, 2.0]))
    array([0.4, 0.4, 0.2])
    """
    b = pull / distances
    return b / b.sum(-1, keepdims=True)


def take_steps(geometry: Geometry, steps: int, floor: Callable[[Float], float]) -> Float:
    """(K,) weights after these steps from the mean of a majority. Shorter distances than `floor(r)` count as that."""
    a = majority_mean(geometry)
    for _ in range(steps):
        r = np.sqrt(geometry.residuals(a))
        a = inverse_weights(np.maximum(r, floor(r)))
    return a
