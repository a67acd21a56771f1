"""How far each client is from the result, tensor by tensor: which layers reveal a liar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.arrays import widen
from honestly.engine.passes.plan import Block, blocks, in_order, threads
from honestly.result import Float
from honestly.sources import Source


def on_host(source: Source, clients: Sequence[int], values: Sequence[Any], width: int) -> Float:
    """(k, leaves) `||w_k - value||^2` by leaf, in one pass; `values[leaf][start:stop]` is the result's piece."""

    def process(block: Block) -> list[tuple[int, Float]]:
        rows = np.empty((len(clients), block.width), block.dtype)
        norms: list[tuple[int, Float]] = []
        for leaf, start, stop, offset in block.segments:
            value = np.empty(stop - start, block.dtype)
            widen(values[leaf][start:stop], value)
            piece = rows[:, offset : offset + stop - start]
            with np.errstate(over="ignore", invalid="ignore"):
                source.read(leaf, start, stop, clients, piece, value)
                norms.append((leaf, np.einsum("kb,kb->k", piece, piece).astype(np.float64)))
        return norms

    total = np.zeros((len(clients), len(source.leaves)))
    for pieces in in_order(process, blocks(source.leaves, width), threads()):
        for leaf, distances in pieces:
            total[:, leaf] += distances
    return total
