"""An attack of your own in one file, and what it does to a few rules.

python examples/custom_attack.py
"""

from dataclasses import dataclass

import numpy as np

import honestly as hn
from honestly.sim.attacks import UpdateAttack, View


@dataclass(frozen=True, kw_only=True)
class Stubborn(UpdateAttack):
    """Every attacker sends its own update with the largest coordinates reversed. Knows its own update."""

    name = "stubborn"
    summary = "the largest coordinates reversed"

    share: float = 0.1

    def craft(self, view: View):
        """(M, d) updates; or return one (d,) vector that all attackers send."""
        xp = view.xp  # NumPy, torch, ...: whatever the updates are
        size = xp.abs(view.own)
        ranked = xp.sort(size, axis=1)
        threshold = ranked[:, int((1 - self.share) * (ranked.shape[1] - 1))][:, None]
        return xp.where(size >= threshold, -4.0 * view.own, view.own)


def main():
    rng = np.random.default_rng(0)
    updates = rng.normal(0.5, 1.0, (20, 1000))
    honest, own = updates[:14], updates[14:]
    forged = Stubborn(share=0.2).forge(View(own=own, rng=rng))
    sent = np.concatenate([honest, forged])
    mean, variance = honest.mean(axis=0), np.square(honest - honest.mean(axis=0)).sum(axis=1).mean()
    for rule in (hn.Mean(), hn.Median(), hn.GeometricMedian(), hn.Bayesian()):
        out = hn.aggregate(sent, rule=rule)
        kappa = np.square(out.value - mean).sum() / variance
        believed = "" if out.honesty is None else f"   believes {(out.honesty > 0.5).sum()} of 20 clients"
        print(f"{rule.name:18s} kappa {kappa:.4f}{believed}")


if __name__ == "__main__":
    main()
