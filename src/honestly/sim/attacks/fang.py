"""Fang et al.: directed deviation against Krum and against the trimmed mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from honestly.rules.rule import squared_distances
from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import gram, host, mean, normal, spread


@dataclass(frozen=True, kw_only=True)
class FangKrum(UpdateAttack):
    """`-lambda s`, s the sign of the honest mean: the largest lambda for which Krum would choose the forged update.

    The first attacker sends it, the others support it from within a small ball. Lambda starts at the paper's upper
    bound and is halved until Krum, told the true number of attackers, chooses it. Knows all honest updates.

    Args:
        epsilon: radius of the ball of supporters, in honest spreads; 0 for identical vectors.

    >>> import numpy as np
    >>> others = np.random.default_rng(1).normal(1.0, 0.1, (6, 4))
    >>> g = FangKrum().forge(View(own=others[:3], others=others, rng=np.random.default_rng(0)))
    >>> bool((np.sign(g[0]) == -1).all())
    True
    """

    name = "fang_krum"
    summary = "against the honest direction, as far as Krum still chooses it; the others support it"
    reference = "Fang et al., Local Model Poisoning Attacks, USENIX Security 2020, section 4.2"
    knows = "all"
    training = 0.0
    keeps = "K d"

    epsilon: float = setting(0.01, least=0.0)

    def craft(self, view: View) -> Array:
        """The chosen update and its supporters."""
        honest = view.honest
        s = view.xp.sign(mean(honest))
        centred = honest - mean(honest)[None, :]
        D, n = squared_distances(gram(centred)), int(honest.shape[0])
        norms, along, length = host((honest * honest).sum(1)), host(honest @ s), float(host((s * s).sum()))
        lam = self._upper_bound(D, norms, length, n=n, M=view.M)
        floor = 1e-5 * max(lam, 1e-30)
        while lam > floor:
            to_forged = norms + 2.0 * lam * along + lam * lam * length
            if _krum_chooses_forged(D, to_forged, view.M):
                break
            lam /= 2.0
        forged = (-lam * s)[None, :]
        if view.M == 1:
            return forged
        radius = self.epsilon * spread(honest) / math.sqrt(max(int(s.shape[0]), 1))
        support = forged + radius * normal(view, (view.M - 1, int(s.shape[0])))
        return view.xp.concat([forged, support], axis=0)

    @staticmethod
    def _upper_bound(D: np.ndarray, norms: np.ndarray, length: float, *, n: int, M: int) -> float:
        """Theorem 1: `min_k sum of the n - 2 nearest / ((K - 2M - 1) sqrt d) + max_k ||w_k|| / sqrt d`."""
        nearest = np.sort(np.sqrt(D), axis=1)[:, : max(n - 1, 1)].sum(axis=1).min()
        scale = math.sqrt(max(length, 1.0))
        return float(nearest / (max(n - M - 1, 1) * scale) + math.sqrt(norms.max()) / scale)


def _krum_chooses_forged(D: np.ndarray, to_forged: np.ndarray, M: int) -> bool:
    """Whether Krum (f = M, sum of the K - f - 2 nearest squared distances) prefers M copies of the forged update."""
    n = len(D)
    keep = max(n - 2, 1)
    forged = np.sort(np.concatenate([np.zeros(M - 1), to_forged]))[:keep].sum()
    rows = np.concatenate([D + np.diag(np.full(n, np.inf)), np.repeat(to_forged[:, None], M, axis=1)], axis=1)
    return bool(forged <= np.sort(rows, axis=1)[:, :keep].sum(axis=1).min())


@dataclass(frozen=True, kw_only=True)
class FangTrimmedMean(UpdateAttack):
    """Values just outside the honest range on the wrong side of every coordinate. Knows all honest updates.

    Where the honest mean grows (s = 1) the attackers send values uniformly in `[min / b, min]` (min > 0) or
    `[b min, min]` (min <= 0); where it falls, the mirror image above the maximum.

    Args:
        b: how far outside, a factor greater than 1.

    >>> import numpy as np
    >>> others = np.array([[1.0], [2.0]])
    >>> g = FangTrimmedMean().forge(View(own=np.ones((1, 1)), others=others, rng=np.random.default_rng(0)))
    >>> bool(0.5 <= g[0, 0] <= 1.0)
    True
    """

    name = "fang_trimmed_mean"
    summary = "values just outside the honest range, on the wrong side of every coordinate"
    reference = "Fang et al., Local Model Poisoning Attacks, USENIX Security 2020, section 4.3"
    knows = "all"
    training = 0.0
    keeps = "K d"

    b: float = setting(2.0, above=1.0)

    def craft(self, view: View) -> Array:
        """A uniform draw between the extreme value and its outer bound, for each attacker and coordinate."""
        xp, honest = view.xp, view.honest
        s = xp.sign(mean(honest))
        low, high = xp.min(honest, axis=0), xp.max(honest, axis=0)
        below = xp.where(low > 0, low / self.b, low * self.b)
        above = xp.where(high > 0, high * self.b, high / self.b)
        near, far = xp.where(s > 0, low, high), xp.where(s > 0, below, above)
        draws = view.rng.random((view.M, int(s.shape[0])), dtype=np.float32)
        u = xp.asarray(draws, dtype=view.own.dtype, device=view.own.device)
        return near[None, :] + u * (far - near)[None, :]
