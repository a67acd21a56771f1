"""Inner-product manipulation: make the aggregate point against the honest mean."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import mean


@dataclass(frozen=True, kw_only=True)
class IPM(UpdateAttack):
    """`-epsilon mean`: small enough to be believed, opposite to the honest mean. All attackers send identical vectors.

    Knows all honest updates (or those of the malicious clients where they are withheld).

    Args:
        epsilon: length in honest means; 0.1 to 0.5 hides, 10 overwhelms.

    >>> import numpy as np
    >>> others = np.array([[1.0, 0.0], [3.0, 0.0]])
    >>> IPM().forge(View(own=np.ones((1, 2)), others=others, rng=np.random.default_rng(0))) + 0.0
    array([[-1., 0.]])
    """

    name = "ipm"
    summary = "minus epsilon times the honest mean, sent by all"
    reference = "Xie et al., Fall of Empires, UAI 2019"
    knows = "all"
    identical = True
    training = 0.0
    keeps = "K d"

    epsilon: float = setting(0.5, above=0.0)

    def craft(self, view: View) -> Array:
        """`-epsilon mu`."""
        return -self.epsilon * mean(view.honest)
