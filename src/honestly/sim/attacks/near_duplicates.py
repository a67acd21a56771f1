"""Near-duplicate collusion: many copies of one opinion, with jitter that hides that they are copies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import mean, normal, spread, unit

Towards: TypeAlias = Literal["random", "against"]


@dataclass(frozen=True, kw_only=True)
class NearDuplicates(UpdateAttack):
    """`mean + distance s u + jitter s n_k`: one false opinion u, s the honest spread, n_k of length about 1.

    With jitter 0 all attackers send identical vectors. Knows all honest updates (or those of the malicious clients).

    Args:
        distance: of the copies from the honest mean, in honest spreads.
        jitter: length of each copy's own noise, in honest spreads.
        towards: u is a random direction, or the one against the honest mean.

    >>> import numpy as np
    >>> others = np.array([[0.0, 1.0], [0.0, -1.0]])
    >>> g = NearDuplicates(jitter=0.0).forge(View(own=others, others=others, rng=np.random.default_rng(0)))
    >>> round(float(np.linalg.norm(g[0])), 6), bool((g[0] == g[1]).all())
    (1.0, True)
    """

    name = "near_duplicates"
    summary = "copies of one false opinion at one honest spread, with jitter that hides the collusion"
    reference = "the design's open point on jittered collusion; Fung et al., FoolsGold, RAID 2020, for the defence"
    knows = "all"
    training = 0.0
    keeps = "K d"

    distance: float = setting(1.0, least=0.0)
    jitter: float = setting(0.5, least=0.0)
    towards: Towards = setting("random", among=get_args(Towards))

    def craft(self, view: View) -> Array:
        """The opinion and its jittered copies."""
        mu, s, d = mean(view.honest), spread(view.honest), int(view.own.shape[1])
        u = unit(normal(view, (d,))) if self.towards == "random" else -unit(mu)
        opinion = mu + self.distance * s * u
        return opinion[None, :] + self.jitter * s / math.sqrt(d) * normal(view, view.own.shape)
