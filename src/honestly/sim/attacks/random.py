"""Random updates, as the paper states them and as its authors' code makes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import mean, normal


@dataclass(frozen=True, kw_only=True)
class Random(UpdateAttack):
    """`g_k -> N(0, gamma |g_k|^2)` element by element: noise as large as the update. Knows its own update.

    Args:
        gamma: factor of the variance; the paper's 4, that is, a standard deviation of `2 |g_kj|`.

    >>> import numpy as np
    >>> g = Random().forge(View(own=np.ones((1, 10_000)), rng=np.random.default_rng(0)))
    >>> round(float(g.std()), 1)
    2.0
    """

    name = "random"
    summary = "independent noise with the magnitude of each coordinate of the update"
    reference = "the paper, appendix, gamma = 4"
    noise_ahead = True

    gamma: float = setting(4.0, above=0.0)

    def craft(self, view: View) -> Array:
        """`sqrt(gamma) |g_k| n_k` with n_k standard normal."""
        return math.sqrt(self.gamma) * view.xp.abs(view.own) * normal(view, view.own.shape)


@dataclass(frozen=True, kw_only=True)
class RandomColluding(UpdateAttack):
    """`w -> mean_k N(0, (gamma |w_k|)^2)`: random *weights*, and all attackers send the same average of theirs.

    With the reference `w_t`, the weights are `w_k = w_t + g_k` and the update sent is `w - w_t`; without one the
    updates take the place of the weights. Knows the updates of the malicious clients; all send identical vectors.

    Args:
        gamma: factor of the standard deviation.

    >>> import numpy as np
    >>> g = RandomColluding().forge(View(own=np.ones((4, 3)), rng=np.random.default_rng(0)))
    >>> bool((g == g[0]).all())
    True
    """

    name = "random_colluding"
    summary = "one random model, the common average of the attackers' noise, sent by all"
    reference = "the authors' code of the paper, gamma = 4"
    knows = "malicious"
    identical = True
    keeps = "M d"
    noise_ahead = True

    gamma: float = setting(4.0, above=0.0)

    def craft(self, view: View) -> Array:
        """The average of the attackers' random weights, as an update."""
        reference = 0.0 if view.reference is None else view.reference[None, :]
        weights = self.gamma * view.xp.abs(reference + view.own) * normal(view, view.own.shape)
        return mean(weights - reference)
