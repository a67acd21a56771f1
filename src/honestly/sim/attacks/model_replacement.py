"""Model replacement: a backdoored update, scaled so that it survives the average."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.backdoor import BadNets


@dataclass(frozen=True, kw_only=True)
class ModelReplacement(BadNets, UpdateAttack):
    """`g_k -> scale g_k` after training on backdoored data: in a mean of K clients the model becomes the attacker's.

    Knows its own data and update, and the number of clients.

    Args:
        scale: the factor; None for K / M, with which M attackers replace the mean.

    >>> import numpy as np
    >>> ModelReplacement().forge(View(own=np.ones((2, 2)), clients=20, rng=np.random.default_rng(0)))
    array([[10., 10.], [10., 10.]])
    """

    name = "model_replacement"
    summary = "the backdoor's update times K / M, which replaces a plain mean"
    reference = "Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020"

    scale: float | None = setting(None, above=0.0)

    def craft(self, view: View) -> Array:
        """`scale g_k`."""
        return (view.K / view.M if self.scale is None else self.scale) * view.own
