"""K-means that always gives the same answer, and the gap statistic for the number of clusters."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from honestly.result import Float

Labels = npt.NDArray[np.intp]
# Random sets that the gap statistic compares with, and where they come from: they depend on nothing but n.
SAMPLES, SEED = 10, 20220127
STARTS = 10  # of k-means


def kmeans(points: Float, k: int, steps: int = 100) -> Labels:
    """(n,) cluster of each point; the result does not depend on the order of the points.

    The best of several runs of Lloyd's steps, as libraries do it, but their starts are not random: every run starts at
    another point, and adds each time the point farthest from those chosen.

    Example:
        >>> kmeans(np.array([[0.0], [0.1], [5.0], [5.1]]), 2).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
        True
    """
    order = np.lexsort(points.T[::-1])
    X = points[order]
    apart = _squares(X, X)
    outermost = _squares(X, X.mean(axis=0)[None]).argmax(axis=0)
    firsts = _far_apart(apart, outermost, min(STARTS, len(X)))[0]
    tried = _lloyd(X, X[_far_apart(apart, firsts, min(k, len(X)))], steps)
    labels = np.empty(len(X), dtype=np.intp)
    labels[order] = _best(X, tried)
    return labels


def _far_apart(apart: Float, firsts: Labels, k: int) -> Labels:
    """(s, k) points that are far apart by their squared distances (n, n), for each of the first ones (s,)."""
    chosen, near = [firsts], apart[firsts]
    while len(chosen) < k:
        chosen.append(near.argmax(axis=1))
        near = np.minimum(near, apart[chosen[-1]])
    return np.stack(chosen, axis=1)


def two_means(points: Float) -> Labels:
    """(n,) 0 or 1: the best of several deterministic starts of k-means with two clusters.

    The starts are, along each column and along the first principal direction, the cut that leaves the least squared
    distances to the two means.

    Example:
        >>> two_means(np.array([[0.0], [0.1], [5.0], [5.1]])).tolist()
        [0, 0, 1, 1]
    """
    n = len(points)
    if n < 2:
        return np.zeros(n, dtype=np.intp)
    points = points / (float(np.abs(points).max()) or 1.0)  # squares must not overflow
    C = points - points.mean(axis=0)
    axis = np.linalg.svd(C, full_matrices=False)[2][0]
    starts: list[Float] = []
    for values in (*points.T, C @ axis):
        order = np.argsort(values, kind="stable")
        sums = np.cumsum(C[order], axis=0)[:-1]
        left = np.arange(1, n)[:, None]
        gain = (sums**2 / left + (sums[-1] + C[order[-1]] - sums) ** 2 / (n - left)).sum(axis=1)
        cut = int(np.argmax(gain)) + 1
        starts.append(np.stack([points[order[:cut]].mean(axis=0), points[order[cut:]].mean(axis=0)]))
    label = _best(points, _lloyd(points, np.stack(starts), 100))
    return label if label[0] == 0 else 1 - label


def _lloyd(X: Float, centres: Float, steps: int) -> Labels:
    """(s, n) the cluster of each point after Lloyd's steps from each of the starts (s, k, columns)."""
    label = _nearest(X, centres)
    for _ in range(steps):
        centres = _means(X, label, centres)
        moved = _nearest(X, centres)
        if (moved == label).all():
            break
        label = moved
    return label


def _nearest(X: Float, centres: Float) -> Labels:
    """(s, n) the nearest of the centres (s, k, columns)."""
    return ((X[None, :, None, :] - centres[:, None]) ** 2).sum(axis=3).argmin(axis=2)


def _means(X: Float, label: Labels, empty: Float) -> Float:
    """(s, k, columns) the means of the clusters; ``empty`` has those of clusters without a member."""
    member = np.arange(empty.shape[1])[:, None] == label[:, None, :]
    counts = member.sum(axis=2)[:, :, None]
    return np.where(counts > 0, member.astype(np.float64) @ X / np.maximum(counts, 1), empty)


def _best(X: Float, tried: Labels) -> Labels:
    """(n,) the labels with the least squared distances to the means of the clusters, the first of equal ones."""
    k = int(tried.max()) + 1
    centres = _means(X, tried, np.zeros((len(tried), k, X.shape[1])))
    costs = ((X - np.take_along_axis(centres, tried[:, :, None], axis=1)) ** 2).sum(axis=(1, 2))
    return tried[int(np.argmax(costs <= costs.min() * (1.0 + 1e-9)))]


def clusters_by_gap(points: Float, most: int) -> int:
    """The number of clusters by the gap statistic of Tibshirani et al., with points scaled to [0, 1] in each column.

    The smallest k with `gap_k >= gap_(k+1) - s_(k+1)`. Convention of the defences that use it: dispersion is the sum of
    the distances to the centres, compared with uniform points in the unit cube.
    """
    n, columns = points.shape
    extent = np.ptp(points, axis=0)
    X = np.where(extent > 0, (points - points.min(axis=0)) / np.where(extent > 0, extent, 1.0), 0.0)
    gaps, errors = [], []
    for k in range(1, min(most, n) + 1):
        mean, deviation = _uniform_logs(n, columns, k)
        gaps.append(mean - float(np.log(max(_dispersion(X, k), 1e-12))))
        errors.append(deviation * np.sqrt(1.0 + 1.0 / SAMPLES))
        if k > 1 and gaps[-2] >= gaps[-1] - errors[-1]:
            return k - 1
    return len(gaps)


@lru_cache(maxsize=4096)
def _uniform_logs(n: int, columns: int, k: int) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm of the dispersion of uniform points in k clusters."""
    rng = np.random.default_rng(SEED)
    logs = np.log([max(_dispersion(rng.random((n, columns)), k), 1e-12) for _ in range(SAMPLES)])
    return float(logs.mean()), float(logs.std())


def _dispersion(X: Float, k: int) -> float:
    label = kmeans(X, k)
    centres = np.stack([X[label == c].mean(axis=0) for c in np.unique(label)])
    return float(np.sqrt(_squares(X, centres).min(axis=1)).sum())


def _squares(a: Float, b: Float) -> Float:
    return ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
