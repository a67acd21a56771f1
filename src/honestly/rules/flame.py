"""FLAME: the majority that points the same way, clipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.clipping import clip_factors, cosines, norms
from honestly.rules._lib.clusters import majority_component
from honestly.rules.rule import Geometry, Mix, Rule


@dataclass(frozen=True, kw_only=True)
class FLAME(Rule):
    """The mean of the clients in the densest majority by direction, each clipped to the median length.

        admitted = HDBSCAN of 1 - cos(u_k, u_j) with clusters of at least floor(K/2) + 1 and one sample
        value = reference + 1/|admitted| * sum over the admitted of u_k min(1, S / ||u_k||),    S = median_k ||u_k||

    With clusters this large HDBSCAN has a closed form, which is used here: the first single-linkage component that
    holds a majority as the distance grows. The noise that FLAME adds is left to the caller: its scale is lambda times
    `diagnostics["radius"]`.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0, 0.0], [1.0, 0.1], [4.0, 0.0], [-1.0, 0.0]])
        >>> FLAME().mix(GramGeometry(X @ X.T)).matrix.round(3)
        array([[0.333, 0.333, 0.084, 0.   ]])

    Reference: Nguyen et al., FLAME: Taming Backdoors in Federated Learning, USENIX Security 2022.
    """

    name: ClassVar[str] = "flame"
    summary: ClassVar[str] = "the majority that points the same way, clipped to the median length"
    reference: ClassVar[str] = "Nguyen et al., USENIX Security 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def mix(self, geometry: Geometry) -> Mix:
        """Clipping factors of the admitted over their number."""
        R = geometry.gram_about_reference
        lengths = norms(R)
        radius = float(np.median(lengths))
        admitted = majority_component(1.0 - cosines(R))
        weights = np.zeros(geometry.K)
        weights[admitted] = clip_factors(lengths, radius)[admitted] / len(admitted)
        return Mix.of_weights(weights, diagnostics={"radius": radius, "selected": admitted})
