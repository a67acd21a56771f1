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
        found = Attacker(self.space, pipeline, goal, SEARCH).search(rng)
        return replace(self, rows=rows_of(self.space, found.lie, directions_of(self.space)), tries=found.tries)

    def score(self, contestant: Contestant, f: int) -> dict[str, Any]:
        """Score the rule."""
        K, M = self.space.H + self.space.M, self.space.M
        pipeline, told = contestant.build(K=K, f=f, root=None)
        found: Score = measure(self.space, self.rows, pipeline)
        honesty = found.honesty
        return {
            "believed": told if contestant.needs_f else None,
            "kappa": found.kappa,
            "auc": None if found.belief is None else detection_auc(found.belief, [k >= K - M for k in range(K)]),
            "accused": found.false / (K - M),
            "missed": found.missed / M if M else None,
            "estimated": None if honesty is None or found.accused is None else float(found.accused.sum()),
            "honesty": None if honesty is None else [round(float(p), 6) for p in honesty],
            "seconds": found.seconds,
            "layer": found.worst_layer,
            "where": self.layers[int(found.by_layer.argmax())],
            "tries": self.tries,
        }
