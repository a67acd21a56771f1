"""The hybrid sparse attack: large changes in few sensitive weights, small ones in all others."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.alie import z_max
from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import mean, pieces, smallest, std


@dataclass(frozen=True, kw_only=True)
class HybridSparse(UpdateAttack):
    """`mean - (z_2 m + z_1 (1 - m)) std`, m the mask of sensitive weights. Identical vectors.

    The sparse part is too small to be seen in distances, the silent part is inside the honest spread. Convention: the
    authors take m from pruning at initialisation; here a weight is sensitive by the same measure, SNIP's
    `|w_j mean_j|` of this round, layer by layer (without a reference, `|mean_j|`). Standard deviations under the mask
    are cut at their upper fence (third quartile + 1.5 interquartile ranges) as in the authors' code. Knows all honest
    updates (or those of the malicious clients where they are withheld) and the layers.

    Args:
        share: the part of each layer under the mask, at least one weight.
        aggressive: z_2.
        z: z_1; None for `z_max` of ALIE.

    >>> import numpy as np
    >>> others = np.array([[1.0, 0.1], [3.0, 0.3]])
    >>> g = HybridSparse(share=0.5, aggressive=2.0, z=0.0)
    >>> g.forge(View(own=np.ones((1, 2)), others=others, rng=np.random.default_rng(0)))
    array([[0. , 0.2]])
    """

    name = "hybrid_sparse"
    summary = "far from the mean in few sensitive weights, inside the honest spread in all others"
    reference = "Ozfatura et al., Aggressive or Imperceptible, or Both, arXiv 2404.06230, 2024"
    knows = "all"
    identical = True
    training = 0.0
    keeps = "K d"

    share: float = setting(0.01, above=0.0, most=1)
    aggressive: float = setting(10.0, least=0.0)
    z: float | None = None

    def craft(self, view: View) -> Array:
        """The mean less both parts."""
        xp, mu, sigma = view.xp, mean(view.honest), std(view.honest)
        z = z_max(view.K, view.M) if self.z is None else self.z
        sensitivity = xp.abs(mu if view.reference is None else mu * view.reference)
        parts: list[Array] = []
        for cut in pieces(view.layers, int(mu.shape[0])):
            n = int(sensitivity[cut].shape[0])
            quiet = smallest(sensitivity[cut], n - min(max(round(self.share * n), 1), n))
            parts.append(xp.where(quiet, z * sigma[cut], self.aggressive * _limit_spread(xp, sigma[cut], ~quiet)))
        return mu - xp.concat(parts)


def _limit_spread(xp: object, sigma: Array, mask: Array) -> Array:
    """Standard deviations, none above the upper fence of those under the mask."""
    xp_: Array = xp
    chosen = xp_.sort(sigma[mask])
    n = int(chosen.shape[0])
    low, high = chosen[(n - 1) // 4], chosen[(3 * (n - 1)) // 4]
    fence = high + 1.5 * (high - low)
    return xp_.where(sigma > fence, xp_.ones_like(sigma) * fence, sigma)
