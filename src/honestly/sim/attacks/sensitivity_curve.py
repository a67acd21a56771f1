"""Sensitivity-curve maximisation: the outlier to which the rule in use reacts most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from honestly.sim.attacks.adaptive import cheaper
from honestly.sim.attacks.alie import ALIE
from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.game import Game

Towards: TypeAlias = Literal["against", "std", "random"]


@dataclass(frozen=True, kw_only=True)
class SensitivityCurve(UpdateAttack):
    """`mean + delta u`, delta where the sensitivity curve of the rule has its maximum. Identical vectors.

        SC(x) = K (T(honest, x, ..., x) - T(honest)),    delta = argmax ||SC(mean + delta u)||

    With u against the honest mean, the same in every round, the harm adds up (the paper's aligned form). Convention:
    the M attackers are x together, and the curve is measured from the honest mean instead of T(honest). The curve is
    evaluated at ``points`` distances from 0.05 to ``reach`` honest spreads, evenly in their logarithm, and then
    between the neighbours of the best. Knows all honest updates and the rule; without a rule that it can ask it is
    ALIE.

    Args:
        towards: u is "against" the honest mean, minus the standard deviation ("std"), or "random".
        points: how many distances are evaluated.
        reach: the largest distance, in honest spreads.
        columns: how many columns stand for all of them against a coordinate-wise rule.

    >>> import numpy as np
    >>> from honestly.engine import Pipeline
    >>> X = np.random.default_rng(1).normal(1.0, 0.1, (9, 5))
    >>> view = View(own=X[6:], others=X[:6], rng=np.random.default_rng(0), pipeline=Pipeline.of("median"))
    >>> g = SensitivityCurve().forge(view)
    >>> bool(g[0].mean() < X[:6].mean())
    True
    """

    name = "sensitivity_curve"
    summary = "the outlier to which the rule in use reacts most, sent by all"
    reference = "Schroth, Vlaski and Zoubir, Sensitivity Curve Maximization, arXiv 2412.17740, 2024"
    knows = "rule"
    identical = True
    training = 0.0
    keeps = "2 K d"

    towards: Towards = setting("against", among=get_args(Towards))
    points: int = setting(24, whole=True, least=3)
    reach: float = setting(30.0, above=0.05)
    columns: int = setting(4096, whole=True, least=1)

    def craft(self, view: View) -> Array:
        """The maximum of the curve, as an update."""
        if view.pipeline is None:
            return ALIE().craft(view)
        game = Game.of(view, cheaper(view.pipeline), columns=self.columns)
        if not game.can_be_asked():
            return ALIE().craft(view)
        directions = game.directions()
        if not directions:
            return view.own
        u = np.tile(directions.get(self.towards, next(iter(directions.values()))), (view.M, 1))
        grid = np.geomspace(0.05, self.reach, self.points)
        curve = [game.displacement(delta * u) for delta in grid]
        best = _first_largest(curve)
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, self.points - 1)]
        near = [*np.linspace(low, high, 9), grid[best]]
        delta = near[_first_largest([game.displacement(t * u) for t in near])]
        return game.vectors(delta * u)[0, :]


def _first_largest(curve: list[float]) -> int:
    """The first of the largest values to three digits, so rounding (and the array library) does not decide."""
    return int(np.argmax([float(f"{value:.3g}") for value in curve]))
