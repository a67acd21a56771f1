"""Staleness: the weight of an update that started from an old model is reduced, after the rule has judged it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from honestly.arrays import Host
from honestly.engine import Pipeline, run
from honestly.engine.pipeline import Decision
from honestly.federation.shelf import WaitingUpdate
from honestly.result import Aggregate, ClientId, Float, Verdict
from honestly.rules.rule import ColumnRule, Geometry
from honestly.sources import Source, open_source
from honestly.sources.tree import signature


def discounts(staleness: Sequence[int] | Float, exponent: float) -> Float:
    """`(1 + staleness) ** -exponent` for each update.

    Example:
        >>> discounts([0, 3, 8], 0.5).round(3)
        array([1.   , 0.5  , 0.333])
    """
    return (1.0 + np.asarray(staleness, dtype=np.float64)) ** -exponent


@dataclass(frozen=True)
class DiscountedPipeline(Pipeline):
    """A pipeline that judges as usual and then multiplies each client's weight by its factor.

    The rest of the weight, up to 1, belongs to the reference. The reference of differences is 0, so a buffer of stale
    updates moves the model less, as in FedBuff.
    """

    factors: Mapping[ClientId, float] = field(default_factory=dict[ClientId, float])

    def decide(self, geometry: Geometry) -> Decision:
        """The decision with discounted weights. Coordinate-wise rules have no weights and are not changed."""
        decision = super().decide(geometry)
        if isinstance(self.rule, ColumnRule):
            return decision
        s = np.array([self.factors[client] for client in geometry.ids])
        mix, plain, by_layer = decision.mix, decision.mixing is None, decision.by_layer
        return Decision(
            None,
            replace(
                mix,
                matrix=decision.matrix * s,
                by_layer=None if by_layer is None else by_layer * s,
                honesty=decision.honesty,
                verdicts=mix.verdicts if plain else None,  # otherwise the weights belong to mixtures
                explanations=mix.explanations if plain else None,
            ),
        )


def excuse(out: Aggregate, staleness: Mapping[ClientId, int]) -> Aggregate:
    """Replace "accused" by "unusual" for clients that were later than most.

    An update from an old model differs from the others even if its client is honest. Weight and honesty do not change,
    so a liar gains nothing but the milder verdict by being late.
    """
    late = sorted(staleness[client] for client in out.clients)
    typical = late[(len(late) - 1) // 2] if late else 0
    verdicts, explanations = list(out.verdicts), list(out.explanations)
    for k, client in enumerate(out.clients):
        age = staleness[client]
        if verdicts[k] is Verdict.ACCUSED and age > typical:
            verdicts[k] = Verdict.UNUSUAL
            explanations[k] = (
                f"started from a model {age} version{'s' * (age != 1)} old, later than most; {explanations[k]}"
            )
    return replace(out, verdicts=tuple(verdicts), explanations=tuple(explanations))


def judge_stale(
    source: Source, pipeline: Pipeline, age: Mapping[ClientId, int], exponent: float, sizes: Float | None = None
) -> tuple[Aggregate, float]:
    """The judgement with discounted weights, and a factor for the whole step.

    The factor is 1 or, for coordinate-wise rules, which have no weights, the mean of the discounts.
    """
    factor = dict(zip(age, map(float, discounts(list(age.values()), exponent)), strict=True))
    out = run(source, DiscountedPipeline(pipeline.mixers, pipeline.rule, factor), sizes)
    rest = 1.0
    if isinstance(pipeline.rule, ColumnRule):
        rest = float(np.mean([factor[client] for client in out.clients if client not in out.excluded]))
    late = np.array([age[client] for client in out.clients])
    return excuse(replace(out, diagnostics={**out.diagnostics, "staleness": late}), age), rest


def stale_average(
    entries: Sequence[WaitingUpdate], pipeline: Pipeline, *, version: int, exponent: float, buffers: Any
) -> Aggregate:
    """Judge the updates, discount their weights by staleness, and average; `value` has arrays by path."""
    age = {entry.client: max(version - entry.version, 0) for entry in entries}
    updates = {entry.client: dict(entry.arrays) for entry in entries}
    nothing = {name: np.zeros_like(values) for name, values in _usual(entries).items()}
    sizes = np.array([np.nan if entry.size is None else entry.size for entry in entries])
    source = open_source(updates, reference=nothing, root=pipeline.rule.root, buffers=buffers)
    try:
        out, rest = judge_stale(source, pipeline, age, exponent, None if np.isnan(sizes).all() else sizes)
    finally:
        source.close()
    if rest == 1.0:
        return out
    return replace(out, value={name: _scale(values, rest) for name, values in out.value.items()})


def _usual(entries: Sequence[WaitingUpdate]) -> Mapping[str, Host]:
    """The arrays of an update that has the most frequent layout."""
    forms = [tuple(signature(entry.arrays).items()) for entry in entries]
    votes = Counter(forms)
    return entries[max(range(len(forms)), key=lambda k: (votes[forms[k]], -k))].arrays


def _scale(values: Host, factor: float) -> Host:
    return (values * factor).astype(values.dtype) if values.dtype.kind == "f" else values
