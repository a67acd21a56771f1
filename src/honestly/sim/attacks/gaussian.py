"""Isotropic noise."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import normal


@dataclass(frozen=True, kw_only=True)
class Gaussian(UpdateAttack):
    """`g_k -> N(0, (scale rms(g_k))^2 I)`: noise `scale` times as long as the update. Knows its own update.

    Args:
        scale: length of the noise in lengths of the attacker's own update.

    >>> import numpy as np
    >>> g = Gaussian(scale=3.0).forge(View(own=np.ones((1, 10_000)), rng=np.random.default_rng(0)))
    >>> round(float(g.std()), 1)
    3.0
    """

    name = "gaussian"
    summary = "independent isotropic noise"
    reference = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017"
    noise_ahead = True

    scale: float = setting(2.0, above=0.0)

    def craft(self, view: View) -> Array:
        """Noise with the root mean square of each attacker's own update."""
        xp = view.xp
        sizes = xp.sqrt(xp.mean(view.own * view.own, axis=1))[:, None]
        return self.scale * sizes * normal(view, view.own.shape)
