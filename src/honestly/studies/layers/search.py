"""The attacker that knows the rule and chooses its layers: it searches for the lie that does the most damage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.base import Mixer, Rule
from honestly.studies.layers.forge import by_layer, everywhere
from honestly.studies.layers.measure import Score, measure
from honestly.studies.layers.space import Space

Goal: TypeAlias = Literal["whole", "worst"]
TRIES = 240
DRAWN = 0.4  # share of the tries that are drawn; the others change the best ones
RIVALS = 5
# distances in honest spreads, and lengths of what hides that colluders are alike
STEPS = (0.3, 0.6, 1.0, 1.6, 2.5, 5.0, 15.0, 1e3)
JITTERS = (0.0, 0.15, 0.5, 1.0)
HIDING = ("noise", "own")
# an attacker that draws the rule's attention while the others collude, in honest spreads
DECOY = 100.0


@dataclass(frozen=True)
class Lie:
    """What attackers send in the layers they chose, and honest training, or copies of the honest mean, elsewhere.

    Attributes:
        direction: name of the direction in which they collude.
        t: distance from the honest mean, in honest spreads of each layer (or of all layers, if not ``each``).
        j: length of what tells them apart.
        hiding: "noise" of each attacker's own, or its "own" honest deviation.
        layers: (L,) where they lie.
        each: whether distances are in each layer's spread; else one length is shared as the direction has it.
        honest: whether they train honestly in the other layers; else they send the honest mean there.
        decoy: whether the first attacker goes far away, alone.
    """

    direction: str
    t: float
    j: float
    hiding: str
    layers: npt.NDArray[np.bool_]
    each: bool = True
    honest: bool = True
    decoy: bool = False


@dataclass(frozen=True)
class Found:
    """The worst lie that was found, what it does, and how many were tried."""

    value: float
    lie: Lie
    score: Score
    tries: int


@dataclass(frozen=True)
class Attacker:
    """The search against one rule in one space: ``tries`` lies, drawn at first, then changes of the best.

    Arguments:
        space: what can be sent.
        rule: whom to fool, behind the mixers ``pre``.
        goal: the "whole" kappa, or that of the "worst" layer.
        tries: how often the rule is asked.
    """

    space: Space
    rule: Rule
    goal: Goal = "whole"
    tries: int = TRIES
    pre: Sequence[Mixer] = ()

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.goal not in get_args(Goal):
            raise ValueError(f"goal = {self.goal!r}: one of {', '.join(get_args(Goal))}")
        if self.tries < 1:
            raise ValueError(f"tries = {self.tries}: must be at least 1")

    def search(self, rng: np.random.Generator) -> Found:
        """The worst of all tries."""
        directions = directions_of(self.space)
        found: list[Found] = []
        drawing = max(1, round(DRAWN * self.tries))
        for number in range(self.tries):
            if number < drawing:
                lie = drawn(self.space, rng, list(directions), number)
            else:
                rivals = leading(found)
                one = rivals[min(int(rng.exponential(1.0)), len(rivals) - 1)].lie
                left = 1.0 - (number - drawing) / (self.tries - drawing)
                lie = changed(one, rng, list(directions), 0.06 + 0.24 * left)
            score = measure(self.space, rows_of(self.space, lie, directions), self.rule, self.pre)
            value = score.kappa if self.goal == "whole" else score.worst_layer
            found.append(Found(value, lie, score, self.tries))
        return max(found, key=lambda one: one.value)


def leading(found: Sequence[Found]) -> list[Found]:
    """The best of each kind of lie, best first: a search around one of them alone would end at the nearest hill."""
    kinds: dict[tuple[str, str, bool], Found] = {}
    for one in sorted(found, key=lambda one: -one.value):
        kinds.setdefault((one.lie.direction, one.lie.hiding, one.lie.decoy), one)
    return list(kinds.values())[:RIVALS]


def directions_of(space: Space) -> dict[str, Float]:
    """(L, b) directions of length 1 in every layer (0 where there is none), by name."""
    H = space.H
    whole = space.products[:, :H, :H].sum(0)
    vectors = np.linalg.eigh(whole)[1]
    found = {"against": -space.mean, "along": space.mean, "random": space.random}
    found["farthest"] = space.at(int(whole.diagonal().argmax()))
    for i in range(1, min(3, H - 1) + 1):
        v = vectors[:, -i]
        found[f"principal{i}"] = np.pad(v * np.sign(v[np.abs(v).argmax()]), (0, space.b - H))
    for name, rows in space.poisoned.items():
        if len(rows):
            found[name] = space.updates(rows).mean(0)
    units: dict[str, Float] = {}
    for name, c in found.items():
        lengths = space.length(c)
        inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 1e-9 * space.spread)
        units[name] = inverse[:, None] * c
    # in each layer the honest direction of largest variance of that layer
    top = np.linalg.eigh(space.products[:, :H, :H])[1][:, :, -1]
    own = np.pad(top, ((0, 0), (0, space.b - H)))
    lengths = space.length(own)
    units["principal of each"] = own * np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)[:, None]
    return units


def rows_of(space: Space, lie: Lie, directions: dict[str, Float]) -> Float:
    """(L, M, b) what the attackers send."""
    u = directions[lie.direction][:, None, :]
    spread = space.spread
    total = math.sqrt(float(np.square(spread[lie.layers]).sum()))
    share = space.share / max(math.sqrt(float(np.square(space.share[lie.layers]).sum())), 1e-300)
    unit = spread if lie.each else total * share
    told_apart = space.own if lie.hiding == "own" else by_layer(unit, space.noise)
    sent = lie.t * unit[:, None, None] * u + lie.j * told_apart
    if lie.decoy:
        sent[:, 0] = DECOY * spread[:, None] * space.noise[0]
    elsewhere = everywhere(space, space.own if lie.honest else 0.0 * space.own)
    return np.where(lie.layers[:, None, None], sent, elsewhere)


def drawn(space: Space, rng: np.random.Generator, directions: Sequence[str], number: int) -> Lie:
    """A lie at random; directions and distances take turns, so few tries see all of them."""
    direction = directions[number % len(directions)]
    return Lie(
        direction=direction,
        t=STEPS[(number // len(directions) + number) % len(STEPS)] * math.exp(rng.normal(0.0, 0.15)),
        j=JITTERS[int(rng.integers(len(JITTERS)))] * math.exp(rng.normal(0.0, 0.1)),
        hiding=HIDING[int(rng.integers(2))],
        layers=_some_layers(space, rng),
        each=bool(rng.random() < 0.7),
        honest=bool(rng.random() < 0.7),
        decoy=bool(space.M > 1 and rng.random() < 0.1),
    )


def _some_layers(space: Space, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """All of them half of the time; else one, the larger ones, a run of neighbours, or any."""
    L = space.L
    chosen = np.ones(L, dtype=bool)
    if L == 1 or rng.random() < 0.5:
        return chosen
    choices: tuple[Callable[[], npt.NDArray[np.bool_]], ...] = (
        lambda: np.arange(L) == rng.integers(L),
        lambda: space.sizes.argsort().argsort() >= rng.integers(L),
        lambda: np.abs(np.arange(L) - rng.integers(L)) <= rng.integers(1, 4),
        lambda: rng.random(L) < rng.random(),
    )
    chosen = choices[int(rng.integers(len(choices)))]()
    return chosen if chosen.any() else np.arange(L) == int(rng.integers(L))


def changed(lie: Lie, rng: np.random.Generator, directions: Sequence[str], step: float) -> Lie:
    """A lie near another: its distance, what hides it, and now and then its layers or its direction."""
    layers = lie.layers
    if len(layers) > 1 and rng.random() < 0.3:
        layers = layers ^ (rng.random(len(layers)) < min(1.5 / len(layers), 0.5))
        layers = layers if layers.any() else lie.layers
    j = lie.j * math.exp(rng.normal(0.0, 1.5 * step)) if lie.j else (0.1 if rng.random() < 0.2 else 0.0)
    return replace(
        lie,
        direction=directions[int(rng.integers(len(directions)))] if rng.random() < 0.1 else lie.direction,
        t=lie.t * math.exp(rng.normal(0.0, step)),
        j=0.0 if rng.random() < 0.05 else j,
        hiding=HIDING[int(rng.integers(2))] if rng.random() < 0.1 else lie.hiding,
        layers=layers,
        honest=not lie.honest if rng.random() < 0.05 else lie.honest,
        decoy=lie.decoy if rng.random() < 0.95 else not lie.decoy,
    )
