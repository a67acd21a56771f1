"""A Little Is Enough: hide inside the spread of the honest updates."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from honestly.sim.attacks.attack import Array, UpdateAttack, View
from honestly.sim.attacks.vectors import mean, std


def z_max(K: int, M: int) -> float:
    """The largest z with `Phi(z) <= (K - M - s) / (K - M)`, s = floor(K/2 + 1) - M: a majority still looks farther out.

    Never negative, and finite also where the attackers are a majority.

    >>> round(z_max(20, 8), 3)
    0.674
    """
    supporters = K // 2 + 1 - M
    share = (K - M - supporters) / max(K - M, 1)
    return max(NormalDist().inv_cdf(min(max(share, 1e-6), 1.0 - 1e-6)), 0.0)


@dataclass(frozen=True, kw_only=True)
class ALIE(UpdateAttack):
    """`mean - z std`, coordinate by coordinate: inside the honest spread. All attackers send identical vectors.

    Knows all honest updates; in a round where they are withheld, those that the malicious clients computed, which is
    the form of the original paper.

    Args:
        z: how many standard deviations; None for `z_max`.

    >>> import numpy as np
    >>> others = np.array([[1.0], [3.0]])
    >>> ALIE(z=1.5).forge(View(own=np.ones((1, 1)), others=others, rng=np.random.default_rng(0)))
    array([[0.5]])
    """

    name = "alie"
    summary = "honest mean minus z standard deviations in every coordinate, sent by all"
    reference = "Baruch et al., A Little Is Enough, NeurIPS 2019"
    knows = "all"
    identical = True
    training = 0.0
    keeps = "K d"

    z: float | None = None

    def craft(self, view: View) -> Array:
        """`mu_j - z sigma_j`."""
        z = z_max(view.K, view.M) if self.z is None else self.z
        return mean(view.honest) - z * std(view.honest)
