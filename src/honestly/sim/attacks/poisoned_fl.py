"""PoisonedFL: one random direction, kept through all rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import host, keep_model, last_change, mean, norm, recall, unit


@dataclass(frozen=True, kw_only=True)
class PoisonedFL(UpdateAttack):
    """`k^t * s` with the same random signs s in every round; single lies are small, but they never cancel.

        v^t = |g - ||g|| k s / ||k s|||, made a unit vector,   g = w^t - w^(t-1),   k s what was sent last
        k^t = c^t ||g|| v^t;   every ``window`` rounds   c <- beta c   unless the model follows s

    Coordinates that the honest clients move more get larger lies. The model follows s if so many signs of its change
    over the window agree with s as chance gives in 1 of 100 cases, `d/2 + 2.33 sqrt(d)/2`. Identical vectors. Knows the
    global models of earlier rounds and nothing else: made for fake clients without data. Convention: in the first round
    and where there is no history all magnitudes are equal and the length is ``factor`` times that of the attackers' own
    mean update (the authors' fake clients wait for a round).

    Args:
        factor: c at the start; the paper's 8.
        beta: the factor on c after a window without effect; c never falls below 0.5 (the authors' code).
        window: rounds between two checks of the effect; the paper's 50.
        seed: of the signs.

    >>> import numpy as np
    >>> view = View(own=np.ones((2, 4)), reference=np.zeros(4), rng=np.random.default_rng(0))
    >>> np.abs(PoisonedFL(factor=2.0).forge(view))[0]
    array([2., 2., 2., 2.])
    """

    name = "poisoned_fl"
    summary = "one random direction in all rounds, its length adapted to what the model followed"
    reference = "Xie, Fang and Gong, Model Poisoning Attacks to FL via Multi-Round Consistency, CVPR 2025"
    knows = "malicious"
    identical = True
    training = 0.0
    keeps = "3 d"

    factor: float = setting(8.0, above=0.0)
    beta: float = setting(0.7, above=0.0, most=1)
    window: int = setting(50, whole=True, least=1)
    seed: int = setting(0, whole=True, least=0)

    def signs(self, view: View) -> Array:
        """(d,) the direction s."""
        draws = np.random.default_rng(self.seed).integers(0, 2, int(view.own.shape[1])) * 2 - 1
        return view.xp.asarray(draws, dtype=view.own.dtype, device=view.own.device)

    def craft(self, view: View) -> Array:
        """`c ||g|| v * s`."""
        s, g, sent = self.signs(view), last_change(view), recall(view, "sent")
        if g is None or sent is None or norm(g) == 0.0:
            return self.factor * norm(mean(view.own)) * unit(s)
        v = unit(view.xp.abs(g - norm(g) * unit(sent)))
        return self._factor(view) * norm(g) * (v if norm(v) > 0.0 else unit(view.xp.abs(s))) * s

    def remember(self, view: View, forged: Array) -> Mapping[str, Array]:
        """The model of this round, what was sent, the factor, and the model at the start of the window."""
        if view.reference is None:
            return {}
        xp, age = view.xp, int(host(view.memory["age"])) + 1 if "age" in view.memory else 0
        start = recall(view, "start")
        fresh = start is None or age >= self.window
        return {
            **keep_model(view),
            "sent": xp.asarray(forged[0, :], copy=True),
            "factor": np.array(self._factor(view)),
            "start": xp.asarray(view.reference, copy=True) if fresh else start,
            "age": np.array(0 if fresh else age),
        }

    def _factor(self, view: View) -> float:
        """c^t: smaller if the window has ended and the model did not follow."""
        c = float(host(view.memory["factor"])) if "factor" in view.memory else self.factor
        age = int(host(view.memory["age"])) + 1 if "age" in view.memory else 0
        total = last_change(view, "start")
        if total is None or age < self.window:
            return c
        s, d = self.signs(view), int(view.own.shape[1])
        agree = float(host(view.xp.sum(view.xp.astype(view.xp.sign(total) == s, view.own.dtype))))
        follows = agree >= d / 2 + 2.326 * math.sqrt(d) / 2
        return c if follows or self.beta * c < 0.5 else self.beta * c
