"""A rule of your own in one class, beside the others. It only has to say how much weight each client gets.

python examples/custom_rule.py
honestly simulate rule=examples/custom_rule.py:MedoidMean:f=8 attack=sign_flip malicious=8 --out runs/medoid
"""

from dataclasses import dataclass

import numpy as np

import honestly as hn
from honestly.rules.rule import Geometry, Mix, Rule, squared_distances


@dataclass(frozen=True, kw_only=True)
class MedoidMean(Rule):
    """The mean of the K - f clients nearest to the medoid, the client with the smallest sum of distances."""

    name = "medoid_mean"
    summary = "mean of the clients nearest to the medoid"
    needs = frozenset({"f"})
    bound = "2f+1"

    f: int = 1

    def minimum(self) -> int:
        """The fewest clients that it can work with."""
        return 2 * self.f + 1

    def mix(self, geometry: Geometry) -> Mix:
        """The weights of the K clients, from their mutual distances."""
        self.check(geometry.K)
        distances = np.sqrt(squared_distances(geometry.gram))  # (K, K)
        medoid = np.argmin(distances.sum(axis=1))
        nearest = np.argsort(distances[medoid], kind="stable")[: geometry.K - self.f]
        weights = np.zeros(geometry.K)
        weights[nearest] = 1 / len(nearest)
        return Mix.of_weights(weights, diagnostics={"medoid": int(medoid)})


def main() -> None:
    rng = np.random.default_rng(0)
    updates = 0.5 + rng.normal(size=(20, 1000))
    updates[12:] *= -4  # eight liars
    for rule in (hn.Mean(), hn.MultiKrum(f=8), MedoidMean(f=8), hn.Bayesian()):
        out = hn.aggregate(updates, rule=rule)
        print(f"{rule.name:12} average {out.value.mean():+.2f} (truth +0.50)")
    mixed = hn.aggregate(updates, rule=MedoidMean(f=8), pre=[hn.NNM(f=8)])  # mixers work in front of it, too
    print(f"{'nnm + medoid':12} average {mixed.value.mean():+.2f}")


if __name__ == "__main__":
    main()
