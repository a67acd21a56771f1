"""One attacked round that is known by layer, for stress studies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from honestly.result import Float
from honestly.studies.layers.forge import forge
from honestly.studies.layers.lies import rows_of
from honestly.studies.layers.measure import Score, measure
from honestly.studies.layers.search import Attacker, Goal, directions_of
from honestly.studies.layers.space import LayeredPopulation, Space
from honestly.studies.scores import detection_auc
from honestly.studies.specs import Contestant

#: Number of lies that the attacker tries against each rule, per round and goal.
SEARCH = 120


@dataclass(frozen=True)
class LayeredRound:
    """What the server receives, honest clients first, attackers last, as coefficients over a `Space`."""

    space: Space
    rows: Float
    layers: tuple[str, ...]
    seed: int
    tries: int | None = None

    @classmethod
    def of(cls, population: LayeredPopulation, M: int, seed: int) -> LayeredRound:
        """The round before any attack: the last M clients train honestly."""
        space = Space.of(population, M, np.random.default_rng([seed, M, *population.name.encode()]))
        return cls(space, space.own if M else np.zeros((0, space.b)), population.layers, seed)

    def under_attack(self, spec: str) -> LayeredRound | None:
        """The round under an attack; None if Gram matrices do not determine it or it was not recorded."""
        rows = forge(self.space, spec, np.random.default_rng([self.seed, self.space.M, *spec.encode()]))
        return None if rows is None else replace(self, rows=rows)

    def under_search(self, contestant: Contestant, f: int, *, goal: Goal) -> LayeredRound:
        """The round under the worst lie that a search against the rule finds."""
        pipeline, _ = contestant.build(K=self.space.H + self.space.M, f=f, root=None)
        rng = np.random.default_rng([self.seed, self.space.M, *goal.encode()])
        worst = Attacker(self.space, pipeline, goal, SEARCH).search(rng)
        return replace(self, rows=rows_of(self.space, worst.lie, directions_of(self.space)), tries=worst.tries)

    def score(self, contestant: Contestant, f: int) -> dict[str, Any]:
        """Score the rule."""
        K, M = self.space.H + self.space.M, self.space.M
        pipeline, believed = contestant.build(K=K, f=f, root=None)
        score: Score = measure(self.space, self.rows, pipeline)
        honesty = score.honesty
        return {
            "believed": believed if contestant.needs_f else None,
            "kappa": score.kappa,
            "auc": None if score.belief is None else detection_auc(score.belief, [k >= K - M for k in range(K)]),
            "accused": score.false / (K - M),
            "missed": score.missed / M if M else None,
            "estimated": None if honesty is None or score.accused is None else float(score.accused.sum()),
            "honesty": None if honesty is None else [round(float(p), 6) for p in honesty],
            "seconds": score.seconds,
            "layer": score.worst_layer,
            "where": self.layers[int(score.by_layer.argmax())],
            "tries": self.tries,
        }
