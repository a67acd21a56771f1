"""Free rider: a client that returns the global model without training."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import normal, rms


@dataclass(frozen=True, kw_only=True)
class FreeRider(UpdateAttack):
    """`g_k -> 0`, or a little noise that disguises it: the client did not train. Knows its own update's size only.

    Args:
        noise: standard deviation of the disguise, in root mean squares of an honest update; 0 for none, and then all
            attackers send the same vector.

    >>> import numpy as np
    >>> FreeRider().forge(View(own=np.ones((1, 2)), rng=np.random.default_rng(0)))
    array([[0., 0.]])
    """

    name = "free_rider"
    summary = "sends the global model back, without training"
    reference = "Lin et al., Free-riders in Federated Learning: Attacks and Defenses, 2019"
    training = 0.0

    noise: float = setting(0.0, least=0.0)

    def craft(self, view: View) -> Array:
        """Zero plus the disguise."""
        if self.noise == 0.0:
            return view.xp.zeros_like(view.own)
        return self.noise * rms(view.own) * normal(view, view.own.shape)
