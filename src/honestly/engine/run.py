"""One aggregation: screen, measure, decide, average; repeated without any client whose fault shows only later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.engine.averaging import average, keep_buffers
from honestly.engine.geometry import bare_geometry, measure_grams
from honestly.engine.passes import EarlyStart, Passes, passes_over
from honestly.engine.pipeline import Pipeline
from honestly.engine.report import describe
from honestly.engine.screening import Screen
from honestly.engine.streaming import STREAM_FROM, stream_geometry
from honestly.result import Aggregate, AggregationError, Float
from honestly.rules.rule import Geometry, TooFewClientsError
from honestly.sources import Source


@np.errstate(under="ignore")  # where the caller's program raises: what underflows here counts as nothing
def run(
    source: Source,
    pipeline: Pipeline,
    sizes: Float | None = None,
    *,
    explain: bool = False,
    passes: Passes | None = None,
    early: EarlyStart | None = None,
) -> Aggregate:
    """The robust average of a source's clients.

    Args:
        source: the clients' updates.
        pipeline: mixers and the rule.
        sizes: (K,) the sizes that the clients report.
        explain: measure how far each client is from the result in each tensor, in one more pass.
        passes: how the source's columns are read, where it is not one that `passes_over` knows.
        early: what the device has begun for just this source and pipeline.
    """
    if not any(leaf.size for leaf in source.leaves):
        raise AggregationError(*_nothing_to_average(source))
    screen = Screen(source, passes_over(source, early) if passes is None else passes)
    if passes is None:  # collectives hold slices of tensors, and average differences
        screen.refuse_negative_variances()
    while True:
        screen.require(pipeline)
        geometry = measure(screen, pipeline, sizes)
        screen.require(pipeline)
        clients = screen.usable
        try:
            decision = pipeline.decide(geometry)
        except TooFewClientsError as error:
            raise screen.blame(error) from None
        if screen.usable != clients:  # the rule asked for another pass, which found faults
            continue
        values, fine = average(screen, pipeline.rule, decision)
        fields = describe(screen, pipeline.rule, decision, geometry, explain=explain)
        if not screen.confirm(fine()) or screen.usable != clients:  # the description, too, may take a pass
            continue
        values = keep_buffers(screen, decision, values)
        if explain:
            fields["diagnostics"] |= _explain(screen, values)
        return _assemble(screen, fields, values)


def measure(screen: Screen, pipeline: Pipeline, sizes: Float | None = None) -> Geometry:
    """Measure what the pipeline needs, over the clients that turn out to be usable."""
    if not pipeline.gram_needed:
        return bare_geometry(screen, sizes)
    if pipeline.streams and len(screen.usable) >= STREAM_FROM:
        return stream_geometry(screen, sizes)
    return measure_grams(screen, sizes, root=pipeline.rule.root is not None)


def _assemble(screen: Screen, fields: dict[str, Any], values: Sequence[Any]) -> Aggregate:
    source, clients, weights = screen.source, screen.usable, fields["weights"]
    votes = np.ones(len(clients)) if weights is None else weights[clients]
    integers = [weighted_mode(source.read_integers(i, clients), votes) for i in range(len(source.integers))]
    reasons = screen.reasons_by_id()
    value = source.assemble(values, integers)
    return Aggregate(value=value, excluded=tuple(reasons), reasons=reasons, clients=source.ids, **fields)


def _explain(screen: Screen, values: Sequence[Any]) -> dict[str, Any]:
    """Squared distances to the result, by tensor; NaN for an excluded client, which is not measured."""
    source = screen.source
    apart = screen.spread(screen.passes.distances(screen.usable, values), np.nan)
    follow = {leaf for layer in source.layers if layer.follows for leaf, _, _ in layer.spans}
    judged = [i for i in range(len(source.leaves)) if i not in follow] or list(range(len(source.leaves)))
    by_tensor = {leaf.name: apart[:, i] for i, leaf in enumerate(source.leaves)}
    return {"distance": np.sqrt(apart[:, judged].sum(axis=1)), "layer_distances": by_tensor}


def weighted_mode(values: np.ndarray, votes: Float) -> np.ndarray:
    """The value of each integer entry that has the most votes. Counters stay integers.

    Of values with as many votes the middle one is taken, the lower of two: where all clients have counted differently,
    none of them can choose the result by counting farther than all others.
    """
    result = values[0].copy()
    apart = np.flatnonzero((values != result).any(axis=0))
    entries = values[:, apart]
    ranked = np.sort(entries, axis=0)
    counts = np.stack([votes @ (entries == row) for row in ranked])
    most = counts.max(axis=0)
    tied = counts >= most - 1e-12 * np.abs(most)
    tied[1:] &= ranked[1:] != ranked[:-1]  # each value once
    middle = np.cumsum(tied, axis=0) == (tied.sum(axis=0) + 1) // 2
    result[apart] = ranked[middle.argmax(axis=0), np.arange(len(apart))]
    return result


def _nothing_to_average(source: Source) -> tuple[str, dict[Any, str]]:
    reasons = {source.ids[k]: reason for k, reason in source.refused.items()}
    if not reasons:
        return "the updates hold no float values to average", {}
    listed = "; ".join(f"client {name!r}: {reason}" for name, reason in list(reasons.items())[:10])
    return f"none of the {len(source.ids)} clients can be used; {listed}", reasons
