"""HDBSCAN: clusters of any density from a K x K matrix of distances, and the outliers between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules._lib.clusters import spanning_tree

Labels = npt.NDArray[np.intp]
OUTLIER = -1


@dataclass
class _Cluster:
    """A cluster of the condensed tree: born at a density, until it splits or dissolves."""

    members: list[int]
    birth: float
    stability: float = 0.0
    children: list[_Cluster] = field(default_factory=list["_Cluster"])

    def chosen(self) -> tuple[float, list[_Cluster]]:
        """The most stable clusters among this one and its descendants, and the sum of their stabilities."""
        below = [child.chosen() for child in self.children]
        total = sum(stability for stability, _ in below)
        if below and total > self.stability:
            return total, [cluster for _, clusters in below for cluster in clusters]
        return self.stability, [self]


def hdbscan(D: Float, least: int = 5, neighbours: int = 5) -> Labels:
    """(K,) the cluster of each point, `OUTLIER` for those in none; clusters are numbered by their first member.

    Campello et al.: distances become `max(D_ij, c_i, c_j)`, c the distance to the ``neighbours``-th nearest one;
    single linkage; parts with fewer than ``least`` points fall out; of nested clusters the more stable are taken. The
    stability is the sum over members of (density at which the member leaves - density of birth), density = 1/distance.
    All points together are not a cluster. Convention: joins at the same distance happen at once, so the order of the
    points does not matter; the library hdbscan joins them one after the other, so there a point between two clusters
    may fall into either.

    Example:
        >>> x = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.3, 20.0])
        >>> hdbscan(np.abs(x[:, None] - x), least=2, neighbours=1)
        array([ 0,  0,  0,  1,  1,  1, -1])
    """
    K = len(D)
    label = np.full(K, OUTLIER, dtype=np.intp)
    if 2 * least > K:
        return label  # too few points for two clusters, and all points together are not one
    cores = np.sort(D, axis=1)[:, min(neighbours, K - 1)]
    reach = np.maximum(D, np.maximum(cores[:, None], cores[None, :]))
    edges = spanning_tree(reach)
    tiny = 1e-12 * (float(reach.max()) or 1.0)
    root = _Cluster(list(range(K)), 1.0 / max(max(length for length, _, _ in edges), tiny))
    pending = [root]
    while pending:
        cluster = pending.pop()
        _grow(cluster, edges, least, tiny)
        pending += cluster.children
    clusters = [cluster for child in root.children for cluster in child.chosen()[1]]
    for number, cluster in enumerate(sorted(clusters, key=lambda cluster: min(cluster.members))):
        label[cluster.members] = number
    return label


def _grow(cluster: _Cluster, edges: list[tuple[float, int, int]], least: int, tiny: float) -> None:
    """Follow a cluster to higher densities: what falls out adds to its stability; where it splits, it has children."""
    left = cluster.members
    while True:
        inside = set(left)
        mine = [edge for edge in edges if edge[1] in inside and edge[2] in inside]
        longest = max(length for length, _, _ in mine)
        density = 1.0 / max(longest, tiny)
        parts = _components(left, [edge for edge in mine if edge[0] < longest]) if longest > tiny else []
        large = [part for part in parts if len(part) >= least]
        if len(large) != 1:
            cluster.stability += (density - cluster.birth) * len(left)
            cluster.children = [_Cluster(part, density) for part in large]
            return
        cluster.stability += (density - cluster.birth) * (len(left) - len(large[0]))
        left = large[0]


def _components(points: list[int], edges: list[tuple[float, int, int]]) -> list[list[int]]:
    """The points that edges connect, each group in ascending order."""
    group = {point: point for point in points}

    def head(point: int) -> int:
        while group[point] != point:
            group[point] = group[group[point]]
            point = group[point]
        return point

    for _, a, b in edges:
        group[head(a)] = head(b)
    groups: dict[int, list[int]] = {}
    for point in points:
        groups.setdefault(head(point), []).append(point)
    return list(groups.values())
