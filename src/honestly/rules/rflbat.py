"""RFLBAT: two principal components, k-means, and the cluster whose members agree least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.result import Float
from honestly.rules._lib.clipping import cosines
from honestly.rules._lib.kmeans import clusters_by_gap, kmeans
from honestly.rules._lib.spectra import centre_gram
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class RFLBAT(Rule):
    """The mean of one cluster in the plane of the first two principal components, without its outliers.

        keep those whose distances to the others sum to less than eps1 times the median of these sums
        k-means, the number of clusters by the gap statistic; take the cluster with the smallest median, over its
        members, of the mean cosine to all members: attackers agree more than honest clients do
        of that cluster keep those with sums below eps2 times the median; their mean is the value

    Conventions: a member's cosine to itself counts, as in public code; clusters of one are not taken; k-means is the
    best of ten starts from points that are far apart, and the gap statistic's random sets are fixed, so nothing is
    random here; if the median is 0 everybody passes.

    Args:
        eps1, eps2: the authors' 10 and 4.
        most: the largest number of clusters.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.random.default_rng(3).normal(1.0, 0.3, size=(12, 30))
        >>> X[8:] = -1.0 + 0.3 * (X[8:] - 1.0)
        >>> RFLBAT().mix(GramGeometry(X @ X.T)).matrix.round(3)[0, 6:]
        array([0.125, 0.125, 0.   , 0.   , 0.   , 0.   ])

    Reference: Wang et al., RFLBAT: A Robust Federated Learning Algorithm against Backdoor Attack, 2022.
    """

    eps1: float = setting(10.0, above=1.0)
    eps2: float = setting(4.0, above=1.0)
    most: int = setting(9, whole=True, least=1)

    name: ClassVar[str] = "rflbat"
    summary: ClassVar[str] = "the cluster in two principal components whose members agree least"
    reference: ClassVar[str] = "Wang et al., 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for those who pass."""
        K = geometry.K
        plane = principal_plane(geometry.gram)
        left = within(plane, np.arange(K), self.eps1)
        label = kmeans(plane[left], clusters_by_gap(plane[left], self.most))
        C = cosines(geometry.gram_about_reference)
        groups = [left[label == c] for c in np.unique(label)]
        groups = [g for g in groups if len(g) > 1] or [left]
        agreement = [float(np.median(C[np.ix_(g, g)].mean(axis=1))) for g in groups]
        selected = within(plane, groups[int(np.argmin(np.round(agreement, 12)))], self.eps2)
        weights = np.zeros(K)
        weights[selected] = 1.0 / len(selected)
        return Mix.of_weights(weights, diagnostics={"plane": plane, "selected": selected})


def principal_plane(G: Float) -> Float:
    """(K, 2) coordinates along the first two principal components, each with its largest entry positive.

    A component that is rounding of the first is 0: clusters are looked for in columns scaled to the same extent.
    """
    K = len(G)
    values, vectors = np.linalg.eigh(centre_gram(G, np.full(K, 1.0 / K)))
    values = np.where(values > 1e-14 * K * values[-1], values, 0.0)
    axes = vectors[:, ::-1][:, :2] * np.sqrt(np.maximum(values[::-1][:2], 0.0))
    return axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])


def within(plane: Float, clients: np.ndarray, eps: float) -> np.ndarray:
    """Those of the clients whose distances to the others sum to less than eps times the median of these sums.

    Distances among copies are rounding, which must not decide: all of them pass.
    """
    P = plane[clients]
    sums = np.sqrt(((P[:, None] - P[None]) ** 2).sum(axis=2)).sum(axis=1)
    rounding = 1e-12 * len(P) * float(np.abs(P).max(initial=0.0))
    near = clients[sums < eps * max(float(np.median(sums)), rounding)]
    return near if len(near) else clients
