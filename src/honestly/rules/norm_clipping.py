"""The mean of clipped updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.clipping import clip_factors, norms
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class NormClipping(Rule):
    """The mean of the updates, each shortened to at most `radius`.

        value = reference + 1/K * sum_k u_k min(1, radius / ||u_k||),    u_k = w_k - reference

    Args:
        radius: the longest update, in the units of the updates; None takes the median of the updates' norms.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0], [1.0], [2.0], [1e12]])
        >>> NormClipping(radius=2.0).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.5]])

    Reference: Sun et al., Can You Really Backdoor Federated Learning?, 2019.
    """

    radius: float | None = setting(None, above=0.0)

    name: ClassVar[str] = "norm_clipping"
    summary: ClassVar[str] = "mean of the updates, each shortened to a radius"
    reference: ClassVar[str] = "Sun et al., 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def mix(self, geometry: Geometry) -> Mix:
        """The clipping factors over K; the rest of the weight goes to the reference."""
        lengths = norms(geometry.gram_about_reference)
        radius = float(np.median(lengths)) if self.radius is None else self.radius
        return Mix.of_weights(clip_factors(lengths, radius) / geometry.K, diagnostics={"radius": radius})
