"""Whole updates in memory, for the few rules that look at coordinates: top-k masks, frequencies, predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from honestly import arrays
from honestly.arrays import COMPUTE
from honestly.result import Float
from honestly.rules.geometry import Coordinates, Statistics
from honestly.sources import Layer, Source
from honestly.sources.checkpoints.device import OnDevice
from honestly.sources.grouping import is_variance, variance_name
from honestly.sources.tree import tensor_label

# More than this is refused before anything is read.
MOST_BYTES = 16 << 30


def coordinates(source: Source, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Coordinates:
    """`mixing @ (X - reference)` by judged layer, and the reference itself (zeros without one)."""
    layers = [layer for layer in source.layers if not layer.follows]
    width = max((COMPUTE[leaf.spec.dtype]().itemsize for leaf in source.leaves), default=4)
    needed = (len(clients) + 1) * sum(layer.size for layer in layers) * width
    if needed > MOST_BYTES:
        raise ValueError(
            f"this rule looks at whole updates, {needed / 2**30:.1f} GiB for {len(clients)} clients, more than the "
            f"{MOST_BYTES / 2**30:.0f} GiB that are read at once: use a rule that works from distances"
        )
    rows = [_rows(source, layer, clients) for layer in layers]
    if reference is None:
        middle = [np.zeros(layer.size, part.dtype) for layer, part in zip(layers, rows, strict=True)]
    else:
        middle = [_rows(source, layer, [reference])[0] for layer in layers]
        for part, centre in zip(rows, middle, strict=True):
            part -= centre
    if mixing is not None:
        rows = [mixing.astype(part.dtype) @ part for part in rows]
    return Coordinates(tuple(rows), tuple(middle))


def statistics(
    source: Source, clients: Sequence[int], reference: int | None, mixing: Float | None
) -> Sequence[Statistics]:
    """BatchNorm's running means and variances of the mixtures (None: of the clients), by layer, in the source's order.

    They are known by their names, whether they are judged or not. What the rows of ``mixing`` lack to 1 is the share of
    the reference.
    """
    named = _named_spans(source)
    spans = dict(named)

    def values(name: str) -> Float:
        rows = columns(source, [spans[name]], clients).astype(np.float64)
        if mixing is None:
            return rows
        mixed = mixing @ rows
        if reference is not None:
            mixed += (1.0 - mixing.sum(axis=1))[:, None] * columns(source, [spans[name]], [reference])
        return mixed

    pairs = [(name, variance_name(name)) for name, _ in named]
    return tuple(Statistics(name, values(name), values(other)) for name, other in pairs if other in spans)


def negative_variances(source: Source, clients: Sequence[int]) -> dict[int, str]:
    """Those of these clients that hold a running variance below zero, and where."""
    reasons: dict[int, str] = {}
    for name, (leaf, start, stop) in _variances(source):
        if source.on_host or isinstance(source, OnDevice):
            lowest = columns(source, [(leaf, start, stop)], clients).min(axis=1)
        else:
            block = source.block(leaf, start, stop, clients)
            lowest = np.empty(len(clients), COMPUTE[source.leaves[leaf].spec.dtype])
            arrays.widen(arrays.to_host(arrays.namespace(block).min(block, axis=1)), lowest)
        for j in np.flatnonzero(lowest < 0).tolist():
            reasons.setdefault(clients[j], f"{tensor_label(name)} holds a negative variance ({float(lowest[j]):.6g})")
    return reasons


def holds_variances(source: Source, client: int) -> bool:
    """Whether this client, or the reference, holds running variances: not if all are 0, or one is negative."""
    values = [columns(source, [span], [client]) for _, span in _variances(source)]
    return any(v.any() for v in values) and all((v >= 0).all() for v in values)


def _variances(source: Source) -> list[tuple[str, tuple[int, int, int]]]:
    return [(name, span) for name, span in _named_spans(source) if is_variance(name)]


def _named_spans(source: Source) -> list[tuple[str, tuple[int, int, int]]]:
    """The tensors by name: the leaves, or the pieces of one flat array that `layers=` cuts."""
    if len(source.leaves) > 1:
        return [(leaf.name, (i, 0, leaf.size)) for i, leaf in enumerate(source.leaves) if leaf.size]
    return [(layer.name, layer.spans[0]) for layer in source.layers if len(layer.spans) == 1]


def _rows(source: Source, layer: Layer, clients: Sequence[int]) -> np.ndarray:
    """(k, n) the layer's columns of these clients."""
    return columns(source, layer.spans, clients)


def columns(source: Source, spans: Sequence[tuple[int, int, int]], clients: Sequence[int]) -> np.ndarray:
    """(k, n) the columns of these spans."""
    pieces: list[np.ndarray] = []
    for leaf, start, stop in spans:
        out = np.empty((len(clients), stop - start), COMPUTE[source.leaves[leaf].spec.dtype])
        if source.on_host or isinstance(source, OnDevice):
            source.read(leaf, start, stop, clients, out, None)
        else:
            block = source.block(leaf, start, stop, clients)
            arrays.widen(arrays.to_host(block), out)
        pieces.append(out)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
