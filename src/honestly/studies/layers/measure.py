"""Score a rule in a round that is known layer by layer."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from honestly.engine import Decision, Pipeline
from honestly.result import Float, Verdict
from honestly.rules.rule import ColumnRule, GramGeometry, Mix
from honestly.studies.layers.space import Space
from honestly.studies.layers.stand_ins import StandIns

# relative to the squared length of the honest mean: smaller honest differences may be rounding alone
AGREED = 1e-4
# the same for a move of 0
ROUNDING = 1e-10


@dataclass(frozen=True)
class Score:
    """The score of a rule in one round; attackers are the last M of K clients.

    Attributes:
        kappa: squared distance of the aggregate to the honest mean, in honest variances, all layers together.
        by_layer: (L,) the same of each layer in its own variance (see `in_units`).
        accused: (K,) clients that it turned against; None for a coordinate-wise rule, which has no weights.
        honesty: (K,) probabilities, if it states any.
        belief: (K,) honesty, or else weights; None for a coordinate-wise rule.
        seconds: the rule's own time.
    """

    kappa: float
    by_layer: Float
    accused: npt.NDArray[np.bool_] | None
    honesty: Float | None
    belief: Float | None
    M: int
    seconds: float

    @property
    def worst_layer(self) -> float:
        """The largest kappa of a layer."""
        return float(self.by_layer.max())

    @property
    def false(self) -> int:
        """How many honest clients it turned against."""
        return 0 if self.accused is None else int(self.accused[: len(self.accused) - self.M].sum())

    @property
    def missed(self) -> int:
        """How many attackers it did not turn against."""
        return self.M if self.accused is None else int((~self.accused[len(self.accused) - self.M :]).sum())


def measure(space: Space, forged: Float, pipeline: Pipeline, stand_ins: StandIns | None = None) -> Score:
    """The rule's answer, behind its mixers, to what attackers send: coefficients (M, b) or (L, M, b).

    ``stand_ins`` are coordinates for a rule that needs them; one that looks at inner products alone does not.
    """
    grams, towards = space.grams(forged), space.towards_mean(forged)
    squared = space.products[:, space.n, space.n]
    geometry = geometry_of(grams, towards, squared, space.sizes)
    sent = None if stand_ins is None else stand_ins.clients(forged)
    if stand_ins is not None and sent is not None:
        geometry = with_coordinates(geometry, stand_ins, sent)
    start = time.perf_counter()
    decision = pipeline.decide(geometry)
    seconds = time.perf_counter() - start
    mix, rule = decision.mix, pipeline.rule
    if isinstance(rule, ColumnRule):
        if stand_ins is None or sent is None:
            raise ValueError(f"rule {rule.name}: reduces coordinates, and only inner products are known")
        moved, total = stand_ins.displacement(rule, decision.matrix @ sent), None
    else:
        weights = weights_of(decision, len(grams))
        lacking = 1.0 - weights.sum(axis=1)  # the reference's share: it lies at minus the mean
        moved = np.einsum("lk,lkj,lj->l", weights, grams, weights)
        moved += lacking**2 * squared - 2.0 * lacking * (weights * towards).sum(axis=1)
        total = space.sizes / space.sizes.sum() @ weights
    moved = np.maximum(np.where(np.isfinite(moved), moved, np.inf), 0.0)
    honesty = None if pipeline.mixers or mix.honesty is None else np.asarray(mix.honesty, dtype=np.float64)
    return Score(
        kappa=float(moved.sum() / max(space.variance.sum(), np.finfo(float).tiny)),
        by_layer=in_units(moved, space.variance, squared),
        accused=None if total is None else accused_by(mix, honesty, total),
        honesty=honesty,
        belief=total if honesty is None else honesty,
        M=space.M,
        seconds=seconds,
    )


def with_coordinates(geometry: GramGeometry, stand_ins: StandIns, sent: Float) -> GramGeometry:
    """The geometry of clients whose coordinates are known, (K, c)."""
    return replace(
        geometry,
        mixed_signs=lambda A: stand_ins.signs(sent if A is None else A @ sent),
        mixed_coordinates=lambda A: stand_ins.coordinates(sent if A is None else A @ sent),
    )


def geometry_of(
    layers: Float, towards: Float | None = None, squared: Float | None = None, sizes: npt.ArrayLike | None = None
) -> GramGeometry:
    """What a rule may know of clients with these Gram matrices (L, K, K) about the honest mean.

    Args:
        layers: the Gram matrices.
        towards: (L, K) inner products with the honest mean.
        squared: (L,) its squared length; with both, the rule gets Gram matrices about the reference, as from the
            engine.
        sizes: (L,) number of values of each layer; equal if None.
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

    A bias in front of a BatchNorm moves by weight decay alone: honest clients differ there by rounding only, which is
    no useful unit. Where honest clients did not move at all, any move counts as infinite.
    """
    unit = np.where(variance > AGREED * squared, variance, squared)
    tiny = np.finfo(float).tiny
    return np.where(
        unit > 0.0, moved / np.maximum(unit, tiny), np.where(moved > ROUNDING * variance.sum(), np.inf, 0.0)
    )


def accused_by(mix: Mix, honesty: Float | None, weights: Float) -> npt.NDArray[np.bool_]:
    """(K,) clients that a rule turned against: by verdict, honesty, or a weight below a tenth of an equal share."""
    if mix.verdicts is not None and len(mix.verdicts) == len(weights):
        return np.array([verdict is Verdict.ACCUSED for verdict in mix.verdicts])
    return weights < 0.1 / len(weights) if honesty is None else honesty < 0.5
