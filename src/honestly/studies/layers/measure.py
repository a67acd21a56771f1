"""How a rule did in a round that is known layer by layer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from honestly.engine import Decision, Pipeline
from honestly.result import Float, Verdict
from honestly.rules.rule import GramGeometry, Mix, Mixer, Rule
from honestly.studies.layers.space import Space

# of the squared length of their mean: honest clients who differ less than that may differ by rounding alone
AGREED = 1e-4
# of the same: what rounding can make of a move of 0
ROUNDING = 1e-10


@dataclass(frozen=True)
class Score:
    """What a rule did to the clients of one round; attackers are the last M of K.

    Attributes:
        kappa: squared distance of the aggregate to the honest mean, in honest variances, all layers together.
        by_layer: (L,) the same of each layer in its own variance (see `in_units`).
        accused: (K,) whom it turned against.
        honesty: (K,) probabilities, if it states any.
        seconds: the rule's own time.
    """

    kappa: float
    by_layer: Float
    accused: npt.NDArray[np.bool_]
    honesty: Float | None
    belief: Float
    M: int
    seconds: float

    @property
    def worst_layer(self) -> float:
        """The largest kappa of a layer."""
        return float(self.by_layer.max())

    @property
    def false(self) -> int:
        """How many honest clients it turned against."""
        return int(self.accused[: len(self.accused) - self.M].sum())

    @property
    def missed(self) -> int:
        """How many attackers it did not turn against."""
        return int((~self.accused[len(self.accused) - self.M :]).sum())


def measure(space: Space, forged: Float, rule: Rule, pre: Sequence[Mixer] = ()) -> Score:
    """The rule's answer, behind its mixers, to what attackers send: coefficients (M, b) or (L, M, b)."""
    grams, towards = space.grams(forged), space.towards_mean(forged)
    squared = space.products[:, space.n, space.n]
    geometry = geometry_of(grams, towards, squared, space.sizes)
    start = time.perf_counter()
    decision = Pipeline(tuple(pre), rule).decide(geometry)
    seconds = time.perf_counter() - start
    mix, weights = decision.mix, weights_of(decision, len(grams))
    lacking = 1.0 - weights.sum(axis=1)  # the reference's share: it lies at minus the mean
    moved = np.einsum("lk,lkj,lj->l", weights, grams, weights)
    moved += lacking**2 * squared - 2.0 * lacking * (weights * towards).sum(axis=1)
    moved = np.maximum(np.where(np.isfinite(moved), moved, np.inf), 0.0)
    honesty = None if pre or mix.honesty is None else np.asarray(mix.honesty, dtype=np.float64)
    total = space.sizes / space.sizes.sum() @ weights
    return Score(
        kappa=float(moved.sum() / max(space.variance.sum(), np.finfo(float).tiny)),
        by_layer=in_units(moved, space.variance, squared),
        accused=accused_by(mix, honesty, total),
        honesty=honesty,
        belief=total if honesty is None else honesty,
        M=space.M,
        seconds=seconds,
    )


def geometry_of(
    layers: Float, towards: Float | None = None, squared: Float | None = None, sizes: npt.ArrayLike | None = None
) -> GramGeometry:
    """All that a rule may know of clients with these Gram matrices about the honest mean, (L, K, K).

    Arguments:
        layers: the Gram matrices.
        towards: (L, K) inner products with the honest mean.
        squared: (L,) its squared length; with both, the Gram matrices are given about the reference, as the engine
            measures them where it is given one.
        sizes: (L,) values of each layer; all alike, if None.
    """
    columns = np.ones(len(layers)) if sizes is None else np.asarray(sizes, dtype=np.float64)
    if towards is None or squared is None:
        return GramGeometry.of_layers(layers, layer_sizes=columns)
    about = layers + towards[:, :, None] + towards[:, None, :] + squared[:, None, None]
    return GramGeometry.of_layers(about, has_reference=True, layer_sizes=columns)


def weights_of(decision: Decision, L: int) -> Float:
    """(L, K) a row of weights for each layer."""
    if decision.by_layer is not None:
        return np.asarray(decision.by_layer, dtype=np.float64)
    return np.broadcast_to(decision.matrix[0], (L, decision.matrix.shape[1]))


def in_units(moved: Float, variance: Float, squared: Float) -> Float:
    """(L,) squared moves in honest variances, or in squared lengths of the honest mean where the honest agree.

    A bias in front of a BatchNorm is moved by weight decay alone: honest clients differ by rounding there, which is no
    unit. Where they did not move at all, any move is without bound.
    """
    unit = np.where(variance > AGREED * squared, variance, squared)
    tiny = np.finfo(float).tiny
    return np.where(
        unit > 0.0, moved / np.maximum(unit, tiny), np.where(moved > ROUNDING * variance.sum(), np.inf, 0.0)
    )


def accused_by(mix: Mix, honesty: Float | None, weights: Float) -> npt.NDArray[np.bool_]:
    """(K,) whom a rule turned against: by its verdicts, its honesty, or a weight below a tenth of an equal share."""
    if mix.verdicts is not None and len(mix.verdicts) == len(weights):
        return np.array([verdict is Verdict.ACCUSED for verdict in mix.verdicts])
    return weights < 0.1 / len(weights) if honesty is None else honesty < 0.5
