"""The second pass: the value, from the weights that were decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from honestly import arrays
from honestly.arrays import COMPUTE
from honestly.engine.centres import by_centrality, majority_radii
from honestly.engine.passes import single_clients
from honestly.engine.passes.coordinates import columns
from honestly.engine.pipeline import Decision
from honestly.engine.screening import Screen
from honestly.result import Float
from honestly.rules.rule import ColumnRule, Rule
from honestly.sources import Source
from honestly.sources.checkpoints.device import OnDevice
from honestly.sources.checkpoints.source import CheckpointSource

#: Columns of the buffers that are compared at once.
WIDTH = 1 << 16


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
    """The believed client (of very many: of a selection) that is most central in the buffers, in the layer of them in
    which it is least so.

    Not the one nearest to the result: a liar can send the others' mean, and with it any buffers.
    """
    clients = np.sort(by_centrality(screen))
    buffers = [layer.spans for layer in screen.source.layers if layer.kept]
    radii = np.stack([majority_radii(_gram_of_buffers(screen.source, spans, clients.tolist())) for spans in buffers])
    usual = np.median(radii, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        beyond = np.divide(radii, usual, out=np.where(radii > 0, np.inf, 0.0), where=usual > 0).max(axis=0)
    weights, honesty, which = decision.matrix, decision.honesty, np.searchsorted(screen.usable, clients)
    believed = np.ones(len(clients), bool) if len(weights) > 1 else weights[0, which] > 0
    if honesty is not None:
        believed &= honesty[which] >= 0.5
    return int(clients[np.argmin(np.where(believed if believed.any() else True, beyond, np.inf))])


def _gram_of_buffers(source: Source, spans: Sequence[tuple[int, int, int]], clients: Sequence[int]) -> Float:
    """(k, k) about the coordinates' medians: distances among most clients are precise, however far away others are."""
    G = np.zeros((len(clients), len(clients)))
    for leaf, start, end in spans:
        for first in range(start, end, WIDTH):
            rows = columns(source, [(leaf, first, min(end, first + WIDTH))], clients).astype(np.float64)
            rows -= np.median(rows, axis=0)
            G += rows @ rows.T
    return G
