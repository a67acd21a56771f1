"""Centred clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.clipping import clip_factors
from honestly.rules._lib.neighbours import central_clients
from honestly.rules.rule import Geometry, Mix, Rule, squared_distances
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class CenteredClipping(Rule):
    """Moves from a centre by the mean of the clients' differences from it, each clipped to length tau.

        v <- v + 1/K * sum_k (w_k - v) min(1, tau / ||w_k - v||),    `steps` times

    It starts from the reference (the previous model) if the caller gave one, else from a central client: the one with
    the tightest ball that holds a majority, or the mean of several that are equal in this.

    Args:
        tau: the clipping radius, in the units of the updates. None takes the median distance from v, anew in each step,
            which makes the rule independent of units.
        steps: how often to repeat.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [2.0], [1e12]])
        >>> CenteredClipping(tau=1.0, steps=1).mix(GramGeometry(X @ X.T)).matrix @ X
        array([[1.25]])

    Reference: Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021.
    """

    tau: float | None = setting(None, above=0.0)
    steps: int = setting(3, whole=True, least=1)

    name: ClassVar[str] = "centered_clipping"
    summary: ClassVar[str] = "mean of the differences from a centre, each clipped"
    reference: ClassVar[str] = "Karimireddy et al., ICML 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def mix(self, geometry: Geometry) -> Mix:
        """`v = reference + sum_k a_k (w_k - reference)`; only a is followed."""
        K = geometry.K
        R = geometry.gram_about_reference if geometry.has_reference else geometry.gram
        a = np.zeros(K)
        if not geometry.has_reference:
            central = central_clients(squared_distances(geometry.gram))
            a[central] = 1.0 / len(central)
        tau = 0.0
        for _ in range(self.steps):
            mixed = R @ a
            r = np.sqrt(np.maximum(np.diagonal(R) - 2.0 * mixed + a @ mixed, 0.0))  # ||w_k - v||
            tau = float(np.median(r)) if self.tau is None else self.tau
            clip = clip_factors(r, tau) / K
            a = (1.0 - clip.sum()) * a + clip
        facts = {"steps": self.steps, "diagnostics": {"tau": tau}}
        return Mix.of_weights(a if geometry.has_reference else a / a.sum(), **facts)
