"""Attacks on updates as coefficients over a `Space`: what attackers send in each layer.

Attacks of `honestly.sim.attacks` that combine updates and add noise have the same form and name here. Gram matrices do
not show the standard deviation of each coordinate, which `alie` and `min_max` use: a random direction of the same
length in every layer stands for it. Attacks on one layer send honest training in the others.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np

from honestly.hints import unknown
from honestly.own import is_own
from honestly.result import Float
from honestly.rules.rule import squared_distances
from honestly.sim.attacks import ATTACKS, DataAttack
from honestly.sim.attacks.alie import z_max
from honestly.sim.attacks.min_max import MinMax, MinSum
from honestly.studies.layers.space import Space
from honestly.studies.specs import words

Forge = Callable[..., Float]


def forge(space: Space, spec: str, rng: np.random.Generator) -> Float | None:
    """(L, M, b) what attackers send under an attack such as "alie:z=1.5"; None if Gram matrices do not determine it."""
    name, settings = words(spec)
    if name in ATTACKS and issubclass(ATTACKS[name], DataAttack):
        rows = space.poisoned.get(name)
        return None if rows is None else everywhere(space, space.updates(rows))
    if name not in FORMS:
        return None
    if name in ATTACKS:
        attack: Any = ATTACKS.build(spec)
        settings = {key: getattr(attack, key) for key in signature(FORMS[name]).parameters if hasattr(attack, key)}
    return everywhere(space, FORMS[name](space, rng, **settings))


def check(spec: str) -> None:
    """Raise ValueError unless the text names an attack, here or on coordinates, and settings that it has."""
    name, settings = words(spec)
    if name in ATTACKS or is_own(name):
        ATTACKS.build(spec)
        return
    if name not in FORMS:
        raise ValueError(unknown("attack", name, [*ATTACKS, *FORMS]))
    allowed = list(signature(FORMS[name]).parameters)[2:]
    for setting in settings:
        if setting not in allowed:
            raise ValueError(unknown(f"setting of attack {name}", setting, allowed))


def everywhere(space: Space, rows: Float) -> Float:
    """(L, M, b) rows (b,), (M, b) or (L, M, b)."""
    return np.broadcast_to(rows, (space.L, space.M, space.b))


def by_layer(lengths: Float, rows: Float) -> Float:
    """(L, M, b) rows (b,) or (M, b), as long as given in each layer."""
    return lengths[:, None, None] * np.atleast_2d(rows)


def sign_flip(space: Space, rng: np.random.Generator, gamma: float) -> Float:
    """Each attacker's own update times -gamma."""
    return -gamma * (space.own + space.mean) - space.mean


def scaling(space: Space, rng: np.random.Generator, gamma: float) -> Float:
    """Each attacker's own update times gamma."""
    return gamma * (space.own + space.mean) - space.mean


def ipm(space: Space, rng: np.random.Generator, epsilon: float) -> Float:
    """Minus epsilon times the honest mean."""
    return -(1.0 + epsilon) * space.mean


def free_rider(space: Space, rng: np.random.Generator, noise: float) -> Float:
    """The model sent back, with noise in lengths of an honest update."""
    lengths = np.mean([_whole(space, row + space.mean) for row in space.own])
    return by_layer(noise * lengths * space.share, space.noise) - space.mean


def gaussian(space: Space, rng: np.random.Generator, scale: float) -> Float:
    """Isotropic noise in lengths of the own update."""
    lengths = np.array([_whole(space, row + space.mean) for row in space.own])
    return by_layer(scale * space.share, lengths[:, None] * space.noise) - space.mean


def alie(space: Space, rng: np.random.Generator, z: float | None) -> Float:
    """The honest mean minus z standard deviations."""
    z = z_max(space.H + space.M, space.M) if z is None else z
    return by_layer(z * space.spread, space.random)


def min_max(space: Space, rng: np.random.Generator, direction: str) -> Float:
    """As far from the mean as the largest distance between honest clients allows."""
    return _farthest(space, direction, MinMax())


def min_sum(space: Space, rng: np.random.Generator, direction: str) -> Float:
    """As far from the mean as the largest sum of honest distances allows."""
    return _farthest(space, direction, MinSum())


def mimic(space: Space, rng: np.random.Generator, target: int | None) -> Float:
    """Copies of one honest client."""
    return space.at(_farthest_out(space) if target is None else target % space.H)


def near_duplicates(space: Space, rng: np.random.Generator, distance: float, jitter: float, towards: str) -> Float:
    """One false opinion with jitter, in spreads of the whole update."""
    s = float(np.sqrt(space.variance.sum()))
    length = _whole(space, space.mean)
    against = everywhere(space, -space.mean * (1.0 / length if length else 0.0))
    u = by_layer(space.share, space.random) if towards == "random" else against
    return distance * s * u + by_layer(jitter * s * space.share, space.noise)


# ---- layer by layer: no form on whole updates


def layer_noise(space: Space, rng: np.random.Generator, scale: float = 3.0, centre: float = 1.0) -> Float:
    """Independent noise proportional to each layer's honest spread, around ``centre`` times the honest mean."""
    return by_layer(scale * space.spread, space.noise) + (centre - 1.0) * space.mean


def layer_duplicates(
    space: Space, rng: np.random.Generator, distance: float = 1.0, jitter: float = 0.5, towards: str = "random"
) -> Float:
    """`near_duplicates` with distance and jitter in each layer's own spread."""
    u = by_layer(distance * space.spread, space.random) if towards == "random" else _against(space, distance)
    return u + by_layer(jitter * space.spread, space.noise)


def jittered_mimic(space: Space, rng: np.random.Generator, jitter: float = 0.5, target: int | None = None) -> Float:
    """`mimic` with noise in units of each layer's spread, so no client is an exact copy."""
    return mimic(space, rng, target) + by_layer(jitter * space.spread, space.noise)


def one_layer(
    space: Space,
    rng: np.random.Generator,
    which: str = "largest",
    lie: str = "copies",
    distance: float = 3.0,
) -> Float:
    """Honest training in all layers but one: the largest, smallest, last, or a random one.

    The lie there is "copies" of a random vector so many honest spreads away, the same "against" the honest mean,
    independent "noise", or a sign "flip" of the own update, so many times as long.
    """
    chosen = {
        "largest": int(space.sizes.argmax()),
        "smallest": int(space.sizes.argmin()),
        "last": space.L - 1,
        "random": int(rng.integers(space.L)),
    }
    if which not in chosen:
        raise ValueError(unknown("layer of attack one_layer", which, chosen))
    lies: dict[str, Forge] = {
        "copies": lambda: by_layer(distance * space.spread, space.random),
        "against": lambda: _against(space, distance),
        "noise": lambda: by_layer(distance * space.spread, space.noise),
        "flip": lambda: sign_flip(space, rng, distance),
    }
    if lie not in lies:
        raise ValueError(unknown("lie of attack one_layer", lie, lies))
    sent = everywhere(space, space.own).copy()
    sent[chosen[which]] = everywhere(space, lies[lie]())[chosen[which]]
    return sent


FORMS: dict[str, Forge] = {
    form.__name__: form
    for form in (
        *(sign_flip, scaling, ipm, free_rider, gaussian, alie, min_max, min_sum, mimic, near_duplicates),
        *(layer_noise, layer_duplicates, jittered_mimic, one_layer),
    )
}

#: Fixed attacks that need layers, beside all the others that have a form here.
LAYERED = (
    *("jittered_mimic:jitter=0.15", "jittered_mimic", "layer_duplicates:jitter=0", "layer_duplicates"),
    *("layer_duplicates:distance=2", "layer_duplicates:towards=against", "layer_duplicates:distance=3:jitter=0.15"),
    *("layer_noise:scale=1", "layer_noise", "layer_noise:scale=9"),
    *(f"one_layer:which={which}" for which in ("largest", "smallest", "last", "random")),
    *(f"one_layer:which={which}:lie=flip" for which in ("largest", "smallest", "last", "random")),
    *(
        "one_layer:which=random:lie=noise",
        "one_layer:which=largest:lie=against",
        "one_layer:which=random:distance=1000",
    ),
)


def _whole(space: Space, c: Float) -> float:
    """Length over all layers."""
    return float(np.sqrt(np.square(space.length(c)).sum()))


def _against(space: Space, distance: float) -> Float:
    """(L, 1, b) against the honest mean, so many honest spreads in each layer."""
    lengths = space.length(space.mean)
    back = np.divide(distance * space.spread, lengths, out=np.zeros(space.L), where=lengths > 0.0)
    return by_layer(back, -space.mean)


def _farthest_out(space: Space) -> int:
    """The honest client farthest out along the first principal direction of all layers together."""
    first = np.linalg.eigh(space.products[:, : space.H, : space.H].sum(0))[1][:, -1]
    return int(np.abs(first).argmax())


def _farthest(space: Space, direction: str, attack: MinMax | MinSum) -> Float:
    """`mean + gamma p` with the largest gamma that the attack's bound allows."""
    length = _whole(space, space.mean)
    unit = everywhere(space, -space.mean * (1.0 / length if length else 0.0))
    p = unit if direction == "unit" else by_layer(space.spread, space.random)
    p = np.broadcast_to(p[:, 0], (space.L, space.b))
    whole = space.products[:, : space.H, : space.H].sum(0)
    a = float(np.einsum("li,lij,lj->", p, space.products, p))
    b = -np.einsum("lj,lji->i", p, space.products[:, :, : space.H])
    gamma = attack.gamma(a, b, whole.diagonal(), squared_distances(whole))
    return gamma * p[:, None, :]
