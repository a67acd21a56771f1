"""Clipped clustering: the larger of two clusters by direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.clipping import clip_factors, cosines, norms
from honestly.rules._lib.clusters import larger_of_two
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class ClippedClustering(Rule):
    """The mean of the larger of two clusters of directions, each update clipped to the median length.

        clusters = average linkage of 1 - cos(u_k, u_j), cut at two;    value = mean of the larger, clipped

    Of two clusters of the same size the tighter one is taken; clients that all point the same way are one cluster.
    Convention: the radius is the median length of this round; the published rule takes the median over all rounds.

    Args:
        radius: the longest update, in the units of the updates; None takes the median.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-9.0, 0.0]])
        >>> ClippedClustering(radius=2.0).mix(GramGeometry(X @ X.T)).matrix.round(3)
        array([[0.333, 0.333, 0.333, 0.   ]])

    Reference: Li et al., An Experimental Study of Byzantine-Robust Aggregation Schemes in Federated Learning, 2023.
    """

    radius: float | None = setting(None, above=0.0)

    name: ClassVar[str] = "clipped_clustering"
    summary: ClassVar[str] = "the larger of two clusters by direction, clipped to the median length"
    reference: ClassVar[str] = "Li et al., IEEE TBD 2023"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def mix(self, geometry: Geometry) -> Mix:
        """Clipping factors of the larger cluster over its size."""
        R = geometry.gram_about_reference
        lengths = norms(R)
        radius = float(np.median(lengths)) if self.radius is None else self.radius
        members = larger_of_two(1.0 - cosines(R))
        weights = np.zeros(geometry.K)
        weights[members] = clip_factors(lengths, radius)[members] / len(members)
        return Mix.of_weights(weights, diagnostics={"radius": radius, "selected": members})
