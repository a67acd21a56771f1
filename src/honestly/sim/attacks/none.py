"""No attack: the malicious clients send what they computed."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View


@dataclass(frozen=True, kw_only=True)
class NoAttack(UpdateAttack):
    """`g_k -> g_k`: the control. Knows its own update.

    >>> import numpy as np
    >>> NoAttack().forge(View(own=np.ones((2, 3)), rng=np.random.default_rng(0)))
    array([[1., 1., 1.], [1., 1., 1.]])
    """

    name = "none"
    summary = "the malicious clients behave honestly"

    def craft(self, view: View) -> Array:
        """The updates as they are."""
        return view.own
