"""Products of a block of rows with itself, cut so that OpenBLAS takes its path for small matrices.

Products of up to a million multiplications need no packing, no thread of BLAS's own and no lock, so that our threads do
not wait for one another: about twice as fast for a 20 x 2,000 block. Beyond some hundred rows one ordinary product is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from honestly.arrays import Host
from honestly.result import Float

SMALL_PRODUCT = 1_000_000
# A block of this many values (1 MiB in float32) stays in a core's second-level cache between its two uses.
BLOCK = 1 << 18
# Rows and columns whose product is small, to make one square of the Gram matrix; the most rows that stay in cache.
TILE, TILE_WIDTH, MOST_TILED = 32, 960, 512


class Way(NamedTuple):
    """How the Gram matrix of n rows is made.

    Attributes:
        rows: of the scratch; the first is empty, then come the n rows, the rest is zero.
        width: columns of a block.
        multiple: of columns that `product` takes, or fewer of them; the last are zero.
        product: scratch -> what is added up over the blocks.
        finish: the sum -> (n, n).
        own_threads: whether blocks may be shared by our threads; else BLAS has threads of its own.
    """

    rows: int
    width: int
    multiple: int
    product: Callable[[Host], Host]
    finish: Callable[[Float], Float]
    own_threads: bool = True


def way_for(n: int) -> Way:
    """The fastest way for n rows."""
    inner = SMALL_PRODUCT // (n * (n + 1)) // 64 * 64
    if inner >= 512:
        width = max(inner, BLOCK // (n + 1) // inner * inner)
        return Way(n + 1, width, inner, lambda rows: _in_runs(rows, inner), lambda total: total)
    if n <= MOST_TILED:
        rows = 1 + -(-n // TILE) * TILE
        return Way(rows, TILE_WIDTH, TILE_WIDTH, _in_tiles, lambda total: _mirrored(total)[:n, :n])
    width = max(512, 4 * BLOCK // n)
    return Way(n + 1, width, 1, lambda rows: np.matmul(rows[1:], rows[1:].T), lambda total: total, False)


def _in_runs(rows: Host, inner: int) -> Host:
    """The sum over runs of columns, in float64; each run's product is small."""
    # Row 0 is empty: operands that start at different rows keep NumPy from choosing syrk, which is slower.
    tiles = rows.reshape(len(rows), -1, min(inner, rows.shape[1])).transpose(1, 0, 2)
    return np.matmul(tiles, tiles[:, 1:].transpose(0, 2, 1)).sum(axis=0, dtype=np.float64)[1:]


def _in_tiles(rows: Host) -> Host:
    """Squares of the lower triangle, each a small product; the upper triangle is left as it comes."""
    tiles: Any = rows[1:].reshape(-1, TILE, rows.shape[1])
    count = len(tiles)
    G = np.zeros((count, TILE, count, TILE), rows.dtype)
    for i in range(count):
        # A copy, for operands that are the same memory make NumPy choose syrk.
        np.matmul(tiles[i].copy(), tiles[: i + 1].transpose(0, 2, 1), out=G[i].transpose(1, 0, 2)[: i + 1])
    return G.reshape(count * TILE, count * TILE)


def _mirrored(lower: Float) -> Float:
    return np.tril(lower) + np.tril(lower, -1).T
