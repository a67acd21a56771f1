"""The second pass: the value, from the weights that were decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from honestly import arrays
from honestly.arrays import COMPUTE
from honestly.engine.passes import single_clients
from honestly.engine.passes.coordinates import columns
from honestly.engine.pipeline import Decision
from honestly.engine.screening import Screen
from honestly.result import Float
from honestly.rules.rule import ColumnRule, Rule
from honestly.sources import Source
from honestly.sources.checkpoints.device import OnDevice
from honestly.sources.checkpoints.source import CheckpointSource

#: Values of the buffers that are compared at once.
VALUES = 1 << 22


def average(screen: Screen, rule: Rule, decision: Decision) -> tuple[Sequence[Any], Callable[[], bool]]:
    """`reduce(A @ X + (1 - A 1) reference)`, and a function that says whether it is finite: a device may be busy.

    A rule that weighs each layer by itself has a row of weights for each, buffers included; else buffers are averaged
    with the weights that were found on the parameters.
    """
    rows = screen.usable
    if isinstance(rule, ColumnRule):
        A = decision.matrix if rule.gram_needed else decision.mixing
        chosen = None if A is None else single_clients(A)
        if chosen is not None:  # rows are read, not multiplied
            A, rows = None, [rows[j] for j in chosen]
        if A is not None and screen.reference is not None:
            A, rows = _with_reference(A), [*rows, screen.reference]
        return screen.passes.reduce(rule, A, rows)
    A = decision.matrix if decision.by_layer is None else decision.by_layer
    if screen.reference is not None and np.abs(1 - A.sum(axis=1)).max() > 1e-9:
        A, rows = _with_reference(A), [*rows, screen.reference]
    return screen.passes.mix(A[0] if len(A) == 1 else A, rows)


def _with_reference(A: Float) -> Float:
    return np.concatenate([A, 1.0 - A.sum(axis=1, keepdims=True)], axis=1)


def keep_buffers(screen: Screen, decision: Decision, values: Sequence[Any]) -> Sequence[Any]:
    """Fill in buffers that are not averaged (`buffers="ignore"`): the reference's, else a central believed client's."""
    spans = [span for layer in screen.source.layers if layer.kept for span in layer.spans]
    if not spans:
        return values
    position = screen.reference if screen.reference is not None else _central(screen, decision)
    source, leaves = screen.source, list(values)
    for leaf, start, stop in spans:
        if not source.on_host and not isinstance(source, OnDevice):
            piece = source.block(leaf, start, stop, [position])[0, ...]
            xp = arrays.namespace(piece)
            leaves[leaf] = xp.concat([leaves[leaf][:start], xp.astype(piece, leaves[leaf].dtype), leaves[leaf][stop:]])
            continue
        row = np.empty((1, stop - start), COMPUTE[source.leaves[leaf].spec.dtype])
        source.read(leaf, start, stop, [position], row, None)
        if isinstance(source, CheckpointSource | OnDevice):
            sink = source.last_sink() if isinstance(source, CheckpointSource) else source.host.last_sink()
            sink.put(leaf, start, stop, row[0])
        else:
            arrays.narrow(row[0], leaves[leaf][start:stop])
    return leaves


def _central(screen: Screen, decision: Decision) -> int:
    """The believed client that is most central in the buffers, in the layer of them in which it is least so.

    Not the one nearest to the result: a liar can send the others' mean, and with it any buffers.
    """
    buffers = [layer.spans for layer in screen.source.layers if layer.kept]
    apart = np.stack([_from_median(screen.source, spans, screen.usable) for spans in buffers])
    usual = np.median(apart, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        beyond = np.divide(apart, usual, out=np.where(apart > 0, np.inf, 0.0), where=usual > 0).max(axis=0)
    weights, honesty = decision.matrix, decision.honesty
    believed = np.ones(len(beyond), bool) if len(weights) > 1 else weights[0] > 0
    if honesty is not None:
        believed &= honesty >= 0.5
    return screen.usable[int(np.argmin(np.where(believed if believed.any() else True, beyond, np.inf)))]


def _from_median(source: Source, spans: Sequence[tuple[int, int, int]], clients: Sequence[int]) -> Float:
    """(k,) squared distances of all clients to the medians of the coordinates, which no minority moves far."""
    apart, width = np.zeros(len(clients)), max(1, VALUES // len(clients))
    for leaf, start, end in spans:
        for first in range(start, end, width):
            rows = columns(source, [(leaf, first, min(end, first + width))], clients).astype(np.float64)
            rows -= np.median(rows, axis=0)
            apart += np.vecdot(rows, rows)
    return apart
