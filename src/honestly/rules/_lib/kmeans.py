"""K-means that always gives the same answer, and the gap statistic for the number of clusters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from honestly.result import Float

Labels = npt.NDArray[np.intp]
# Random sets that the gap statistic compares with, and where they come from: they depend on nothing but n.
SAMPLES, SEED = 10, 20220127


def kmeans(points: Float, k: int, steps: int = 100) -> Labels:
    """(n,) cluster of each point; the result does not depend on the order of the points.

    Lloyd's steps from centres that are far apart: the point farthest from the mean, then each time the one farthest
    from those chosen.

    Example:
        >>> kmeans(np.array([[0.0], [0.1], [5.0], [5.1]]), 2).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
        True
    """
    order = np.lexsort(points.T[::-1])
    X = points[order]
    chosen = [int(np.argmax(_squares(X, X.mean(axis=0)[None])[:, 0]))]
    while len(chosen) < min(k, len(X)):
        chosen.append(int(np.argmax(_squares(X, X[chosen]).min(axis=1))))
    labels = np.empty(len(X), dtype=np.intp)
    labels[order] = _lloyd(X, X[chosen], steps)
    return labels


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
    tried: list[tuple[float, Labels]] = []
    for values in (*points.T, C @ axis):
        order = np.argsort(values, kind="stable")
        sums = np.cumsum(C[order], axis=0)[:-1]
        left = np.arange(1, n)[:, None]
        gain = (sums**2 / left + (sums[-1] + C[order[-1]] - sums) ** 2 / (n - left)).sum(axis=1)
        cut = int(np.argmax(gain)) + 1
        label = _lloyd(points, np.stack([points[order[:cut]].mean(axis=0), points[order[cut:]].mean(axis=0)]), 100)
        centres = np.stack([points[label == c].mean(axis=0) for c in np.unique(label)])
        tried.append((float(_squares(points, centres).min(axis=1).sum()), label))
    best = min(cost for cost, _ in tried)
    label = next(label for cost, label in tried if cost <= best * (1.0 + 1e-9))
    return label if label[0] == 0 else 1 - label


def _lloyd(X: Float, centres: Float, steps: int) -> Labels:
    """(n,) the cluster of each point after Lloyd's steps from these centres."""
    label = _squares(X, centres).argmin(axis=1)
    for _ in range(steps):
        centres = np.stack(
            [X[label == c].mean(axis=0) if (label == c).any() else centres[c] for c in range(len(centres))]
        )
        moved = _squares(X, centres).argmin(axis=1)
        if (moved == label).all():
            break
        label = moved
    return label


def clusters_by_gap(points: Float, most: int) -> int:
    """The number of clusters by the gap statistic of Tibshirani et al., with points scaled to [0, 1] in each column.

    The smallest k with `gap_k >= gap_(k+1) - s_(k+1)`. Convention of the defences that use it: dispersion is the sum of
    the distances to the centres, compared with uniform points in the unit cube.
    """
    n, columns = points.shape
    extent = np.ptp(points, axis=0)
    X = np.where(extent > 0, (points - points.min(axis=0)) / np.where(extent > 0, extent, 1.0), 0.0)
    rng = np.random.default_rng(SEED)
    uniform = [rng.random((n, columns)) for _ in range(SAMPLES)]
    gaps, errors = [], []
    for k in range(1, min(most, n) + 1):
        logs = np.log([max(_dispersion(U, k), 1e-12) for U in uniform])
        gaps.append(float(logs.mean()) - float(np.log(max(_dispersion(X, k), 1e-12))))
        errors.append(float(logs.std()) * np.sqrt(1.0 + 1.0 / SAMPLES))
        if k > 1 and gaps[-2] >= gaps[-1] - errors[-1]:
            return k - 1
    return len(gaps)


def _dispersion(X: Float, k: int) -> float:
    label = kmeans(X, k)
    centres = np.stack([X[label == c].mean(axis=0) for c in np.unique(label)])
    return float(np.sqrt(_squares(X, centres).min(axis=1)).sum())


def _squares(a: Float, b: Float) -> Float:
    return ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
