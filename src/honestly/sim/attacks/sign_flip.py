"""Sign flip: the honest update with its sign reversed."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting


@dataclass(frozen=True, kw_only=True)
class SignFlip(UpdateAttack):
    """`g_k -> -gamma g_k`: each attacker reverses and enlarges its own update. Knows its own update.

    Args:
        gamma: how far to push; the paper's 4.

    >>> import numpy as np
    >>> SignFlip(gamma=2.0).forge(View(own=np.ones((1, 3)), rng=np.random.default_rng(0)))
    array([[-2., -2., -2.]])
    """

    name = "sign_flip"
    summary = "each attacker sends its own update times -gamma"
    reference = "Li et al., RSA, AAAI 2019; the paper, appendix, gamma = 4"

    gamma: float = setting(4.0, above=0.0)

    def craft(self, view: View) -> Array:
        """`-gamma g_k`."""
        return -self.gamma * view.own
