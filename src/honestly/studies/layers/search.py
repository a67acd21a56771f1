"""The attacker that knows the rule and the layers, and searches for the lie that does the most damage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from honestly.engine import Pipeline
from honestly.result import Float
from honestly.studies.layers.lies import Lie, change_lie, draw_lie, rows_of
from honestly.studies.layers.measure import Score, measure
from honestly.studies.layers.space import Space
from honestly.studies.layers.stand_ins import StandIns

Goal: TypeAlias = Literal["whole", "worst"]
TRIES = 240
DRAWN = 0.4  # share of the tries that are drawn; the others change the best ones
RIVALS = 5


@dataclass(frozen=True)
class WorstLie:
    """The worst lie found, its score, and the number of lies tried."""

    value: float
    lie: Lie
    score: Score
    tries: int


@dataclass(frozen=True)
class Attacker:
    """A search against one rule in one space: ``tries`` lies, first drawn at random, then variations of the best.

    Args:
        space: what can be sent.
        pipeline: the rule to fool, behind its mixers.
        goal: maximise kappa of the "whole" update or of the "worst" layer.
        tries: number of queries to the rule.
        stand_ins: coordinates, for a rule that needs them.
    """

    space: Space
    pipeline: Pipeline
    goal: Goal = "whole"
    tries: int = TRIES
    stand_ins: StandIns | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.goal not in get_args(Goal):
            raise ValueError(f"goal = {self.goal!r}: one of {', '.join(get_args(Goal))}")
        if self.tries < 1:
            raise ValueError(f"tries = {self.tries}: must be at least 1")

    def search(self, rng: np.random.Generator) -> WorstLie:
        """The worst of all tries."""
        directions = directions_of(self.space)
        lies: list[WorstLie] = []
        drawing = max(1, round(DRAWN * self.tries))
        for number in range(self.tries):
            if number < drawing:
                lie = draw_lie(self.space, rng, list(directions), number)
            else:
                rivals = leading(lies)
                one = rivals[min(int(rng.exponential(1.0)), len(rivals) - 1)].lie
                left = 1.0 - (number - drawing) / (self.tries - drawing)
                lie = change_lie(self.space, one, rng, list(directions), 0.06 + 0.24 * left)
            score = measure(self.space, rows_of(self.space, lie, directions), self.pipeline, self.stand_ins)
            value = score.kappa if self.goal == "whole" else score.worst_layer
            lies.append(WorstLie(value, lie, score, self.tries))
        return max(lies, key=lambda one: one.value)


def leading(lies: Sequence[WorstLie]) -> list[WorstLie]:
    """The best lie of each kind, best first: varying a single one would end in the nearest local maximum."""
    kinds: dict[tuple[str | bool, ...], WorstLie] = {}
    for one in sorted(lies, key=lambda one: -one.value):
        kinds.setdefault((one.lie.direction, one.lie.hiding, one.lie.decoy, one.lie.role), one)
    return list(kinds.values())[:RIVALS]


def directions_of(space: Space) -> dict[str, Float]:
    """(L, b) directions of length 1 in every layer (0 where there is none), by name."""
    H = space.H
    whole = space.products[:, :H, :H].sum(0)
    vectors = np.linalg.eigh(whole)[1]
    directions = {"against": -space.mean, "along": space.mean, "random": space.random}
    directions["farthest"] = space.at(int(whole.diagonal().argmax()))
    for i in range(1, min(3, H - 1) + 1):
        v = vectors[:, -i]
        directions[f"principal{i}"] = np.pad(v * np.sign(v[np.abs(v).argmax()]), (0, space.b - H))
    for name, rows in space.poisoned.items():
        if len(rows):
            directions[name] = space.updates(rows).mean(0)
    units: dict[str, Float] = {}
    for name, c in directions.items():
        lengths = space.length(c)
        inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 1e-9 * space.spread)
        units[name] = inverse[:, None] * c
    # in each layer the honest direction of largest variance of that layer
    top = np.linalg.eigh(space.products[:, :H, :H])[1][:, :, -1]
    own = np.pad(top, ((0, 0), (0, space.b - H)))
    lengths = space.length(own)
    units["principal of each"] = own * np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)[:, None]
    return units
