"""ROP: a perturbation orthogonal to the direction in which the model moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from honestly.sim.attacks.alie import z_max
from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import mean, normal, spread, unit


@dataclass(frozen=True, kw_only=True)
class ROP(UpdateAttack):
    """`(1 - location) mean + z s (cos(angle) m + sin(angle) o)`, o orthogonal to the unit mean m.

    Relocated orthogonal perturbation: made against centred clipping, which looks around the previous aggregate. The
    original relocates to the server's momentum of earlier rounds; an attack here sees one round, so the honest mean
    stands for it and the reference (the zero update) is the place to relocate to. The original perturbs from the vector
    of ones by an absolute length; here o is random and s, the honest spread, gives the unit. Identical vectors. Knows
    all honest updates (or those of the malicious clients).

    Args:
        location: 0 stays at the honest mean, 1 relocates to the reference.
        z: length of the perturbation in honest spreads; None for `z_max` of ALIE, at least 1.
        angle: of the perturbation to the honest mean, in degrees; 90 is orthogonal, 180 against it.

    >>> import numpy as np
    >>> others = np.array([[1.0, 0.0], [3.0, 0.0]])
    >>> g = ROP().forge(View(own=others, others=others, rng=np.random.default_rng(0)))
    >>> np.round(np.abs(g[0]), 6)
    array([2., 1.])
    """

    name = "rop"
    summary = "honest mean plus a perturbation orthogonal to it, sent by all"
    reference = "Ozfatura et al., Byzantines Can Also Learn From History: Fall of Centered Clipping, IEEE TIFS 2024"
    knows = "all"
    identical = True
    training = 0.0
    keeps = "K d"

    location: float = setting(0.0, least=0.0)
    z: float | None = None
    angle: float = 90.0

    def craft(self, view: View) -> Array:
        """Relocate, then step aside."""
        mu, s = mean(view.honest), spread(view.honest)
        z = max(z_max(view.K, view.M), 1.0) if self.z is None else self.z
        m = unit(mu)
        o = normal(view, (int(mu.shape[0]),))
        o = unit(o - (o @ m) * m)
        angle = math.radians(self.angle)
        return (1.0 - self.location) * mu + z * s * (math.cos(angle) * m + math.sin(angle) * o)
