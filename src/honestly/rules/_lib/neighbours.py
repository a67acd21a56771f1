"""Nearest neighbours: selections from the K x K matrix of squared distances that several rules share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.rule import Geometry, squared_distances


def smallest(values: Float, count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` smallest values along the last axis; ties go to the first. Sorted by value."""
    return np.argsort(values, axis=-1, kind="stable")[..., :count]


def krum_order(D: Float, count: int) -> tuple[npt.NDArray[np.intp], Float]:
    """The clients by the sum of their `count` smallest squared distances to others, best first, and those sums.

    Two clients that are each other's nearest tie when count is 1: the one with the smaller median distance comes first.
    """
    K = len(D)
    others = D.copy()
    np.fill_diagonal(others, np.inf)
    near = np.sort(others, axis=1)[:, : K - 1]
    scores = near[:, :count].sum(axis=1)
    return np.lexsort((near[:, (K - 1) // 2], scores)), scores


def majority(K: int) -> int:
    """`h = floor(K / 2) + 1`."""
    return K // 2 + 1


def central_clients(D: Float) -> npt.NDArray[np.intp]:
    """The client at the centre of the tightest ball that holds a majority; of equals, the one with nearer members.

    Several if they are equal in that, too, as two clients always are: their order must not decide.
    """
    h = majority(len(D))
    near = np.sort(D, axis=1)[:, :h]
    radius, total = near[:, -1], near.sum(axis=1)
    best = int(np.lexsort((total, radius))[0])
    return np.flatnonzero(np.isclose(radius, radius[best], 1e-12, 0.0) & np.isclose(total, total[best], 1e-12, 0.0))


def majority_mean(geometry: Geometry) -> Float:
    """Weights to start iterations from: the mean of the majority nearest to the mean, computed twice.

    This drops far outliers at once; iterations that start from the mean need a step for every power of ten. Three liars
    can still capture the start if one of them moves the mean to another. So if its majority is more than twice as far
    as that of the most central client, which no minority can move, the start is the mean of that client's majority.
    Streamed clients have no distances for this comparison, only residuals.
    """
    K, h = geometry.K, majority(geometry.K)
    a = np.full(K, 1.0 / K)
    for _ in range(2):
        a = _equal_weights(smallest(geometry.residuals(a), h), K)
    if geometry.streaming:
        return a
    D = squared_distances(geometry.gram)
    reach = np.partition(D, h - 1, axis=1)[:, h - 1]
    radius = np.partition(geometry.residuals(a), h - 1)[h - 1]
    return a if radius <= 4.0 * reach.min() else _equal_weights(smallest(D[reach.argmin()], h), K)


def _equal_weights(clients: npt.NDArray[np.intp], K: int) -> Float:
    """(K,) weights of the mean of some clients."""
    a = np.zeros(K)
    a[clients] = 1.0 / len(clients)
    return a
