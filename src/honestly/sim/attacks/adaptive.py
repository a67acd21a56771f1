"""The attacker that thinks: it knows the rule and searches for the lie that moves the aggregate furthest."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from honestly.result import Float
from honestly.rules.base import Rule
from honestly.sim.attacks.base import Array, UpdateAttack, View
from honestly.sim.attacks.game import Game
from honestly.sim.attacks.min_max import MinMax

# distances from the honest mean, in honest spreads; the last shows a rule without any bound
STEPS = (0.35, 0.7, 1.0, 1.5, 2.2, 3.5, 6.0, 15.0, 1e3)
# operations of an exact subset search, for each question that is put to it
WORK = 300_000
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, kw_only=True)
class Adaptive(UpdateAttack):
    """`mean + t u + j_k` with direction u, distance t and jitter j_k chosen to maximise `||aggregate - honest mean||`.

    White box: it knows all honest updates, the rule and the mixers in front of it, and works against any rule of the
    package. It tries directions (against and along the honest mean, the first two principal directions of the honest
    spread, a random one, minus the standard deviation, the farthest honest client), each without jitter (identical
    vectors), with isotropic jitter, and with each attacker's own honest deviation, which hides the collusion; then
    refines the distance on the best of these lines. Rules that work on the Gram matrix are asked in the span of these
    vectors (see `Game`); coordinate-wise rules on a sample of columns. Without a known rule it is Min-Max.

    Args:
        lines: how many of the best lines are refined.
        refine: steps of golden-section search on each of them.
        columns: how many columns stand for all of them against a coordinate-wise rule.

    >>> import numpy as np
    >>> X = np.random.default_rng(1).normal(size=(12, 50))
    >>> g = Adaptive().forge(View(own=X[8:], others=X[:8], rng=np.random.default_rng(0)))
    >>> g.shape
    (4, 50)
    """

    name = "adaptive"
    summary = "knows the rule and searches for the colluding update that moves the aggregate furthest"
    reference = "in the spirit of Shejwalkar and Houmansadr, NDSS 2021, against any rule"
    knows = "all"

    lines: int = 4
    refine: int = 10
    columns: int = 4096

    def __post_init__(self) -> None:
        """Check the bounds."""
        super().__post_init__()
        self.require("lines", least=0)
        self.require("refine", least=0)
        self.require("columns", least=1)

    def craft(self, view: View) -> Array:
        """The best rows found, as updates."""
        if view.rule is None:
            return MinMax().craft(view)
        game = Game.of(view, cheaper(view.rule), columns=self.columns)
        return game.vectors(self.search(game))

    def search(self, game: Game) -> Float:
        """(M, n) coefficients of the attackers' updates."""
        found: list[tuple[float, int, Float, Float]] = []  # kappa, step, direction, jitter
        for u in game.directions().values():
            for jitter in jitters(game):
                # jitter changes nothing at the far end
                steps = STEPS if not jitter.any() else STEPS[:-1]
                values = [game.moved(t * u + jitter) for t in steps]
                best = int(np.argmax(values))
                found.append((values[best], best, u, jitter))
        if not found:  # every direction has length 0: nothing to know, nothing to do
            return game.each("own")
        # ties go to the first line, so that rounding (and hence the array library) does not decide
        found.sort(key=lambda line: -float(f"{line[0]:.3g}"))
        kappa, best, u, jitter = found[0]
        t = STEPS[best]
        for _, i, direction, noise in found[: self.lines]:
            low, high = STEPS[max(i - 1, 0)], STEPS[min(i + 1, len(STEPS) - 1)]
            better, at = self._line(game, direction, noise, low, high)
            if better > 1.001 * kappa:
                kappa, t, u, jitter = better, at, direction, noise
        return t * u + jitter

    def _line(self, game: Game, u: Float, jitter: Float, low: float, high: float) -> tuple[float, float]:
        """Golden-section search for the distance, on a logarithmic scale."""
        a, b = np.log(low), np.log(high)
        best = (-1.0, low)
        x, y = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
        at_x = at_y = -1.0
        for step in range(self.refine):
            if step == 0 or at_x < 0:
                at_x = game.moved(float(np.exp(x)) * u + jitter)
                best = max(best, (at_x, float(np.exp(x))))
            if at_y < 0:
                at_y = game.moved(float(np.exp(y)) * u + jitter)
                best = max(best, (at_y, float(np.exp(y))))
            if at_x >= at_y:
                b, y, at_y = y, x, at_x
                x, at_x = b - GOLDEN * (b - a), -1.0
            else:
                a, x, at_x = x, y, at_y
                y, at_y = a + GOLDEN * (b - a), -1.0
        return best


def cheaper(rule: Rule) -> Rule:
    """The rule with less effort for its own search, where it has a setting ``work``: it is asked hundreds of times."""
    if "work" not in {field.name for field in fields(rule)}:
        return rule
    change: dict[str, Any] = {"work": min(int(getattr(rule, "work", WORK)), WORK)}
    return replace(rule, **change)


def jitters(game: Game) -> list[Float]:
    """(M, n) rows that tell the copies apart: none, isotropic noise, each attacker's own honest deviation."""
    none = np.zeros((game.view.M, game.n))
    return [none, *(j * game.each("noise") for j in (0.15, 0.5, 1.0)), *(j * game.each("own") for j in (0.5, 1.0))]
