"""Scaling: the honest update, multiplied by a large factor."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting


@dataclass(frozen=True, kw_only=True)
class Scaling(UpdateAttack):
    """`g_k -> gamma g_k`: the right direction with too large a step. Knows its own update.

    Args:
        gamma: the factor; 1e30 tests the numerics.

    >>> import numpy as np
    >>> Scaling().forge(View(own=np.ones((1, 2)), rng=np.random.default_rng(0)))
    array([[10., 10.]])
    """

    name = "scaling"
    summary = "each attacker sends its own update times gamma"
    reference = "Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020 (the scaling alone)"

    gamma: float = setting(10.0, above=0.0)

    def craft(self, view: View) -> Array:
        """`gamma g_k`."""
        return self.gamma * view.own
