"""Clipping to a given radius, a pre-aggregation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from honestly.result import Float
from honestly.rules._lib.clipping import clip_factors, norms
from honestly.rules.rule import Geometry, Mixer


@dataclass(frozen=True, kw_only=True)
class StaticClipping(Mixer):
    """Shortens every update to at most `radius`, before any rule.

        w'_k = reference + u_k min(1, radius / ||u_k||),    u_k = w_k - reference

    Args:
        radius: the longest update, in the units of the updates.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0], [-8.0]])
        >>> StaticClipping(radius=2.0).mix(GramGeometry(X @ X.T)) @ X
        array([[ 1.],
               [-2.]])

    Reference: Sun et al., Can You Really Backdoor Federated Learning?, 2019.
    """

    radius: float = field(metadata={"above": 0.0})

    name: ClassVar[str] = "static_clipping"
    summary: ClassVar[str] = "every update shortened to a given radius"
    reference: ClassVar[str] = "Sun et al., 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def mix(self, geometry: Geometry) -> Float:
        """(K, K) diagonal of the clipping factors."""
        return np.diag(clip_factors(norms(geometry.gram_about_reference), self.radius))
