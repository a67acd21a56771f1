"""Min-Max and Min-Sum: as far as possible from the mean, yet no farther from other clients than honest clients are."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from honestly.result import Float
from honestly.rules.rule import squared_distances
from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import gram, host, largest_root, mean, std, unit

Direction: TypeAlias = Literal["std", "unit", "sign"]


def perturbation(view: View, direction: Direction) -> Array:
    """(d,) inverse standard deviation, inverse unit vector or inverse sign of the honest mean."""
    if direction == "std":
        return -std(view.honest)
    if direction == "unit":
        return -unit(mean(view.honest))
    return -view.xp.sign(mean(view.honest))


@dataclass(frozen=True, kw_only=True)
class _Farthest(UpdateAttack):
    """`mean + gamma p` with the largest gamma that a distance bound allows; quadratic in gamma, so in closed form."""

    knows = "all"
    identical = True
    training = 0.0
    keeps = "K d"

    direction: Direction = setting("std", among=get_args(Direction))

    def craft(self, view: View) -> Array:
        """`mu + gamma p`."""
        mu, p = mean(view.honest), perturbation(view, self.direction)
        centred = view.honest - mu[None, :]
        G = gram(centred)
        # ||mu + gamma p - w_i||^2 = a gamma^2 + 2 b_i gamma + c_i
        a, b, c = float(host((p * p).sum())), -host(centred @ p), np.diagonal(G)
        return mu + self.gamma(a, b, c, squared_distances(G)) * p

    @abstractmethod
    def gamma(self, a: float, b: Float, c: Float, distances: Float) -> float:
        """The largest allowed gamma."""


@dataclass(frozen=True, kw_only=True)
class MinMax(_Farthest):
    """`mean + gamma p`, gamma the largest with `max_i ||g - w_i||^2 <= max_ij ||w_i - w_j||^2`. Identical vectors.

    Knows all honest updates (or those of the malicious clients where they are withheld).

    Args:
        direction: p is minus the standard deviation ("std"), the unit mean ("unit") or its sign ("sign").

    >>> import numpy as np
    >>> others = np.array([[0.0], [2.0]])
    >>> MinMax(direction="unit").forge(View(own=np.ones((1, 1)), others=others, rng=np.random.default_rng(0)))
    array([[0.]])
    """

    name = "min_max"
    summary = "as far from the mean as the largest distance between honest clients allows, sent by all"
    reference = "Shejwalkar and Houmansadr, Manipulating the Byzantine, NDSS 2021"

    def gamma(self, a: float, b: Float, c: Float, distances: Float) -> float:
        """The smallest of the roots, one for each honest client."""
        bound = float(distances.max())
        return min(largest_root(a, float(b_i), float(c_i) - bound) for b_i, c_i in zip(b, c, strict=True))


@dataclass(frozen=True, kw_only=True)
class MinSum(_Farthest):
    """`mean + gamma p`, gamma the largest with `sum_i ||g - w_i||^2 <= max_i sum_j ||w_i - w_j||^2`. Identical vectors.

    Knows all honest updates (or those of the malicious clients where they are withheld).

    Args:
        direction: p is minus the standard deviation ("std"), the unit mean ("unit") or its sign ("sign").

    >>> import numpy as np
    >>> others = np.array([[0.0], [2.0]])
    >>> MinSum(direction="unit").forge(View(own=np.ones((1, 1)), others=others, rng=np.random.default_rng(0)))
    array([[0.]])
    """

    name = "min_sum"
    summary = "as far from the mean as the largest sum of honest distances allows, sent by all"
    reference = "Shejwalkar and Houmansadr, Manipulating the Byzantine, NDSS 2021"

    def gamma(self, a: float, b: Float, c: Float, distances: Float) -> float:
        """The root of the sum of the quadratics."""
        bound = float(distances.sum(axis=1).max())
        return largest_root(len(b) * a, float(b.sum()), float(c.sum()) - bound)
