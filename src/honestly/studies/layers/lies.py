"""Lies of attackers that know layers: where they put effort, which clients they resemble, and who does what."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.studies.layers.forge import by_layer, everywhere
from honestly.studies.layers.space import Space

# distances in honest spreads, and lengths of what hides that colluders are alike
STEPS = (0.3, 0.6, 1.0, 1.6, 2.5, 5.0, 15.0, 1e3)
JITTERS = (0.0, 0.15, 0.5, 1.0)
HIDING = ("noise", "own")
# how far away a decoy is that draws the rule's attention while the others collude, in honest spreads
DECOY = 100.0
#: What some of the attackers do while the others lie: send the model back, copy an honest client or the first attacker
#: to the last digit, or train honestly.
ROLES = ("idle", "mimic", "copies", "honest")


@dataclass(frozen=True)
class Lie:
    """What attackers send in the layers they choose; elsewhere they train honestly or copy the honest mean.

    Attributes:
        direction: name of the direction in which they collude.
        t: distance from the honest mean, in honest spreads of each layer (or of all layers, if not ``each``).
        j: length of what tells them apart.
        hiding: "noise" of each attacker's own, or its "own" honest deviation.
        layers: (L,) where they lie.
        each: whether distances are in each layer's spread; else one length is shared as the direction has it.
        honest: whether they train honestly in the other layers; else they send the honest mean there.
        decoy: whether the first attacker goes far away, alone.
        effort: (L,) factors of the distance in each layer; None for 1 in all.
        second: name of the direction of every second attacker; "" if all share one.
        role: what the last ``spared`` attackers do instead, one of `ROLES`.
        spared: how many have that role.
        target: the honest client that mimics copy.
    """

    direction: str
    t: float
    j: float
    hiding: str
    layers: npt.NDArray[np.bool_]
    each: bool = True
    honest: bool = True
    decoy: bool = False
    effort: Float | None = None
    second: str = ""
    role: str = ""
    spared: int = 0
    target: int = 0


def rows_of(space: Space, lie: Lie, directions: dict[str, Float]) -> Float:
    """(L, M, b) what the attackers send."""
    M = space.M
    u = np.repeat(directions[lie.direction][:, None, :], M, axis=1)
    if lie.second:
        u[:, 1::2] = directions[lie.second][:, None, :]
    spread = space.spread
    total = math.sqrt(float(np.square(spread[lie.layers]).sum()))
    share = space.share / max(math.sqrt(float(np.square(space.share[lie.layers]).sum())), 1e-300)
    unit = spread if lie.each else total * share
    told_apart = space.own if lie.hiding == "own" else by_layer(unit, space.noise)
    length = lie.t * unit * (1.0 if lie.effort is None else lie.effort)
    sent = length[:, None, None] * u + lie.j * told_apart
    if lie.decoy:
        sent[:, 0] = DECOY * spread[:, None] * space.noise[0]
    elsewhere = everywhere(space, space.own if lie.honest else 0.0 * space.own)
    rows = np.where(lie.layers[:, None, None], sent, elsewhere)
    if lie.role and lie.spared:
        rows[:, M - lie.spared :] = _role(space, lie, rows)[:, M - lie.spared :]
    return rows


def _role(space: Space, lie: Lie, rows: Float) -> Float:
    """(L, M, b) what attackers with the role send, in all layers."""
    if lie.role == "idle":
        return everywhere(space, -space.mean)
    if lie.role == "mimic":
        return everywhere(space, space.at(lie.target % space.H))
    if lie.role == "copies":
        return np.repeat(rows[:, :1], space.M, axis=1)
    return everywhere(space, space.own)


def draw_lie(space: Space, rng: np.random.Generator, directions: Sequence[str], number: int) -> Lie:
    """Draw a lie. Directions and distances take turns, so a few tries cover all of them."""
    direction = directions[number % len(directions)]
    lie = Lie(
        direction=direction,
        t=STEPS[(number // len(directions) + number) % len(STEPS)] * math.exp(rng.normal(0.0, 0.15)),
        j=JITTERS[int(rng.integers(len(JITTERS)))] * math.exp(rng.normal(0.0, 0.1)),
        hiding=HIDING[int(rng.integers(2))],
        layers=_some_layers(space, rng),
        each=bool(rng.random() < 0.7),
        honest=bool(rng.random() < 0.7),
        decoy=bool(space.M > 1 and rng.random() < 0.1),
    )
    # most draws are plain: one direction, the same effort in all layers, the same role for all attackers
    return lie if rng.random() < 0.8 else _refine(space, lie, rng, directions)


def _refine(space: Space, lie: Lie, rng: np.random.Generator, directions: Sequence[str]) -> Lie:
    """The lie with uneven effort, a second direction, or a role for some of the attackers."""
    kind = int(rng.integers(3)) if space.M > 1 else 0
    if kind == 0:
        return replace(lie, effort=np.exp(rng.normal(0.0, 0.7, space.L)))
    if kind == 1:
        return replace(lie, second=directions[int(rng.integers(len(directions)))])
    spared, target = int(rng.integers(1, space.M + 1)), int(rng.integers(space.H))
    return replace(lie, role=ROLES[int(rng.integers(len(ROLES)))], spared=spared, target=target)


def _some_layers(space: Space, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """All layers half of the time; else one, the larger ones, some neighbours, or any subset."""
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


def change_lie(space: Space, lie: Lie, rng: np.random.Generator, directions: Sequence[str], step: float) -> Lie:
    """Change a lie a little: distance and disguise always, layers, direction or roles now and then."""
    layers = lie.layers
    if len(layers) > 1 and rng.random() < 0.3:
        layers = layers ^ (rng.random(len(layers)) < min(1.5 / len(layers), 0.5))
        layers = layers if layers.any() else lie.layers
    j = lie.j * math.exp(rng.normal(0.0, 1.5 * step)) if lie.j else (0.1 if rng.random() < 0.2 else 0.0)
    near = replace(
        lie,
        direction=directions[int(rng.integers(len(directions)))] if rng.random() < 0.1 else lie.direction,
        t=lie.t * math.exp(rng.normal(0.0, step)),
        j=0.0 if rng.random() < 0.05 else j,
        hiding=HIDING[int(rng.integers(2))] if rng.random() < 0.1 else lie.hiding,
        layers=layers,
        honest=not lie.honest if rng.random() < 0.05 else lie.honest,
        decoy=lie.decoy if rng.random() < 0.95 else not lie.decoy,
    )
    if near.effort is not None:
        near = replace(near, effort=near.effort * np.exp(rng.normal(0.0, step, space.L)))
    if near.spared:
        near = replace(near, spared=int(np.clip(near.spared + rng.integers(-1, 2), 1, space.M)))
    return _refine(space, near, rng, directions) if rng.random() < 0.1 else near
