"""Nearest neighbours: selections from the K x K matrix of squared distances that several rules share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.rule import Geometry, squared_distances

CANDIDATES = 15  # of thousands of clients, for the most central one


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


def every_nth(K: int, count: int) -> npt.NDArray[np.intp]:
    """`count` ranks of K, evenly spaced. Clients that are as far away as one another, like copies of a lie, stand
    together in order of distance: they have the same share of these ranks as of all."""
    return ((np.arange(count) + 0.5) * (K / count)).astype(np.intp)


def majority_mean(geometry: Geometry) -> Float:
    """Weights to start iterations from: the mean of the majority nearest to the mean, computed twice.

    This drops far outliers at once; iterations that start from the mean need a step for every power of ten. Three liars
    can still capture the start if one of them moves the mean to another. So if its majority is more than twice as far
    as that of the most central client, which no minority can move, the start is the mean of that client's majority.
    Of streamed clients a few at all distances are compared, in one pass.
    """
    K, h = geometry.K, majority(geometry.K)
    a = r2 = np.full(K, 1.0 / K)
    for _ in range(2):
        r2 = geometry.residuals(a)
        a = _mean_of_nearest(r2, h)
    if geometry.streaming:
        few = np.argsort(r2, kind="stable")[every_nth(K, min(CANDIDATES, K))]
        rows = np.zeros((1 + len(few), K))
        rows[0], rows[np.arange(1, len(rows)), few] = a, 1.0
        r2, D = np.split(geometry.residuals(rows), [1])
    else:
        r2, D = geometry.residuals(a), squared_distances(geometry.gram)
    reach = np.partition(D, h - 1, axis=1)[:, h - 1]
    radius = np.partition(r2, h - 1, axis=None)[h - 1]
    return a if radius <= 4.0 * reach.min() else _mean_of_nearest(D[reach.argmin()], h)


def _mean_of_nearest(x: Float, h: int) -> Float:
    """(K,) weights of the mean of the h clients with the smallest x, and of those that are as near: their order must
    not decide."""
    near = x <= np.partition(x, h - 1)[h - 1] * (1.0 + 1e-9)
    return near / np.count_nonzero(near)
