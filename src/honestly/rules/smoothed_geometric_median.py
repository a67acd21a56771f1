"""The smoothed geometric median of RFA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from honestly.rules._lib.weiszfeld import take_steps
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class SmoothedGeometricMedian(Rule):
    """A few steps towards the geometric median with a floor under the distances (robust federated aggregation, RFA).

        b_k = 1 / max(nu, ||w_k - z||),   z <- sum_k b_k w_k / sum_k b_k,    `steps` times

    Convention: the start is the mean of the majority nearest to the mean, or, if liars hold that, to the most central
    client. From the mean itself (RFA) or from 0 (ByzFL) three steps cannot come back from a client at 1e12.
    `GeometricMedian` is the same rule run to convergence.

    Args:
        nu: the floor, in the units of the updates.
        steps: how often to repeat.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0], [1.0], [2.0], [1e12]])
        >>> bool(SmoothedGeometricMedian().mix(GramGeometry(X @ X.T)).matrix[0] @ X < 3)
        True

    Reference: Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022.
    """

    nu: float = setting(1e-6, above=0.0)
    steps: int = setting(3, whole=True, least=1)

    name: ClassVar[str] = "smoothed_geometric_median"
    summary: ClassVar[str] = "a few smoothed steps towards the geometric median (RFA)"
    reference: ClassVar[str] = "Pillutla et al., IEEE TSP 2022"
    streams: ClassVar[bool] = True

    def mix(self, geometry: Geometry) -> Mix:
        """Weights after `steps` steps."""
        return Mix.of_weights(take_steps(geometry, self.steps, lambda _: self.nu), steps=self.steps)
