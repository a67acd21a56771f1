"""Whole updates in memory, for the few rules that look at coordinates: top-k masks, frequencies, predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from honestly import arrays
from honestly.arrays import COMPUTE
from honestly.result import Float
from honestly.rules.geometry import Coordinates
from honestly.sources import Layer, Source
from honestly.sources.checkpoints.device import OnDevice

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


def _rows(source: Source, layer: Layer, clients: Sequence[int]) -> np.ndarray:
    """(k, n) the layer's columns of these clients."""
    pieces: list[np.ndarray] = []
    for leaf, start, stop in layer.spans:
        out = np.empty((len(clients), stop - start), COMPUTE[source.leaves[leaf].spec.dtype])
        if source.on_host or isinstance(source, OnDevice):
            source.read(leaf, start, stop, clients, out, None)
        else:
            block = source.block(leaf, start, stop, clients)
            arrays.widen(arrays.to_host(block), out)
        pieces.append(out)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
