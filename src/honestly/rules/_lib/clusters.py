"""Clusters of clients from a K x K matrix of distances: single linkage, average linkage, and mean shift on features."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from honestly.result import Float

Indices = npt.NDArray[np.intp]
# Distances that differ by less are the same: the cosine of two vectors in the same direction is 1 up to rounding.
ROUNDING = 1e-12


def majority_component(D: Float) -> Indices:
    """The members of the first single-linkage component that holds more than half, as the distance rises."""
    K = len(D)
    edges = spanning_tree(D)
    group = np.arange(K)
    i = 0
    while i < len(edges):
        # Edges of the same length join at once, so the order of the clients does not matter.
        length = edges[i][0]
        while i < len(edges) and edges[i][0] - length <= ROUNDING:
            _, a, b = edges[i]
            group[group == group[b]] = group[a]
            i += 1
        names, sizes = np.unique(group, return_counts=True)
        if sizes.max() > K // 2:
            return np.flatnonzero(group == names[int(np.argmax(sizes))])
    return np.arange(K)


def spanning_tree(D: Float) -> list[tuple[float, int, int]]:
    """The edges of the minimum spanning tree, shortest first (Prim)."""
    K = len(D)
    outside = np.ones(K, dtype=bool)
    outside[0] = False
    reach: Float = D[0].copy()
    near = np.zeros(K, dtype=np.intp)
    edges: list[tuple[float, int, int]] = []
    for _ in range(K - 1):
        new = int(np.argmin(np.where(outside, reach, np.inf)))
        edges.append((float(reach[new]), int(near[new]), new))
        outside[new] = False
        row: Float = D[new]
        near[row < reach] = new
        reach = np.minimum(row, reach)
    return sorted(edges)


def larger_of_two(D: Float) -> Indices:
    """The larger of the two clusters of average linkage; if they are equal, the tighter; if still equal, both.

    Where no two are apart there is one cluster.
    """
    K = len(D)
    if K < 3 or float(D.max()) <= ROUNDING:
        return np.arange(K)
    group = _average_linkage(D, 2)
    sides = [np.flatnonzero(group == name) for name in np.unique(group)]
    first, second = ((len(side), -float(np.round(D[np.ix_(side, side)].mean(), 6))) for side in sides)
    if first == second:
        return np.arange(K)
    return sides[0] if first > second else sides[1]


def _average_linkage(D: Float, clusters: int) -> Indices:
    """(K,) cluster names: the two clusters with the smallest mean distance are joined until `clusters` are left.

    Of pairs that are as near, the one with the most members: a client that did not move is as far from all others, and
    their order must not decide whose cluster it makes the larger one.
    """
    K = len(D)
    L = D.copy()
    np.fill_diagonal(L, np.inf)
    group = np.arange(K)
    sizes = np.ones(K)
    near, reach = L.argmin(axis=1), L.min(axis=1)
    for _ in range(K - clusters):
        tied = np.flatnonzero(reach <= reach.min() + ROUNDING)
        i, j = int(tied[0]), int(near[tied[0]])
        if len(tied) > 2:
            members = np.where(L[tied] <= reach.min() + ROUNDING, sizes[tied, None] + sizes, 0.0)
            first, j = divmod(int(members.argmax()), K)
            i = int(tied[first])
        row = (sizes[i] * L[i] + sizes[j] * L[j]) / (sizes[i] + sizes[j])
        row[[i, j]] = np.inf
        L[i], L[:, i] = row, row
        L[j], L[:, j] = np.inf, np.inf
        sizes[i] += sizes[j]
        group[group == group[j]] = group[i]
        # Rows whose nearest was one of the two look again; for the others only the new row can be nearer.
        stale = np.flatnonzero((near == i) | (near == j))
        stale = np.union1d(stale, [i])
        near[stale], reach[stale] = L[stale].argmin(axis=1), L[stale].min(axis=1)
        closer = L[:, i] < reach
        near[closer], reach[closer] = i, L[closer, i]
        reach[j] = np.inf
    return group


def largest_by_mean_shift(features: Float, quantile: float = 0.5, steps: int = 300) -> Indices:
    """The members of the largest cluster of mean shift with a flat kernel.

    The bandwidth is the mean distance to the `quantile * K`-th nearest, as in scikit-learn's `estimate_bandwidth`.
    """
    K = len(features)
    bandwidth = float(np.sort(_distances(features, features), axis=1)[:, max(int(K * quantile) - 1, 0)].mean())
    bandwidth = bandwidth * (1.0 + 1e-9) + 1e-15  # a neighbour at exactly this distance counts, whatever the rounding
    peaks = np.unique(features, axis=0)
    for _ in range(steps):
        inside = _distances(peaks, features) <= bandwidth
        moved = (inside.astype(np.float64) @ features) / inside.sum(axis=1, keepdims=True)
        done = np.abs(moved - peaks).max() <= 1e-3 * bandwidth
        peaks = np.unique(moved, axis=0)  # most peaks meet after a few steps
        if done:
            break
    weight = (_distances(peaks, features) <= bandwidth).sum(axis=1)
    # The densest peaks first; a peak within the bandwidth of a denser one is the same cluster.
    order = np.lexsort((*-peaks.T[::-1].round(9), -weight))
    centres: list[int] = []
    for k in order:
        if all(np.linalg.norm(peaks[k] - peaks[c]) > bandwidth for c in centres):
            centres.append(int(k))
    label = _distances(features, peaks[centres]).argmin(axis=1)
    return np.flatnonzero(label == int(np.argmax(np.bincount(label))))


def _distances(a: Float, b: Float) -> Float:
    squares = np.zeros((len(a), len(b)))
    for x, y in zip(a.T, b.T, strict=True):
        squares += (x[:, None] - y[None, :]) ** 2
    return np.sqrt(squares)
