"""Products of a block of rows with itself by NumPy, for machines without the compiled kernels.

Products of up to 2^18 multiplications are made by the thread that asks for them, whatever the kernels of the BLAS
(OpenBLAS starts threads of its own beyond that, which then wait for ours): blocks are cut to that size and shared by
our threads. Beyond some hundred rows one ordinary product, with the threads of the BLAS and none of ours, is faster.
(threadpoolctl could limit those threads instead; the core has NumPy alone, and its limit would hold for the caller's
other threads, too.) No way relies on what a BLAS makes of the two triangles: the lower one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from honestly.arrays import Host
from honestly.result import Float

SMALL_PRODUCT = 1 << 18
# A block of this many values (1 MiB in float32) stays in a core's second-level cache between its two uses.
BLOCK = 1 << 18
# Rows and columns whose product is small, to make one square of the Gram matrix; the most rows that stay in cache.
TILE, TILE_RUN, MOST_TILED = 32, 256, 96
# Runs of fewer columns than this cost more calls than the triangle saves.
SHORTEST_RUN = 128


class Way(NamedTuple):
    """How the Gram matrix of n rows is made.

    Attributes:
        rows: of the scratch; the n rows come first, the rest is zero.
        width: columns of a block.
        multiple: of columns that `product` takes; the last are zero.
        product: scratch -> what is added up over the blocks.
        own_threads: whether blocks may be shared by our threads; else BLAS has threads of its own.
    """

    rows: int
    width: int
    multiple: int
    product: Callable[[Host], Host]
    own_threads: bool = True


def way_for(n: int) -> Way:
    """The fastest way for n rows."""
    run = min(2048, SMALL_PRODUCT // (n * n) // 32 * 32)
    if run >= SHORTEST_RUN:
        width = max(run, BLOCK // n // run * run)
        return Way(n, width, run, lambda rows: _in_runs(rows, run))
    if n <= MOST_TILED:
        rows = -(-n // TILE) * TILE
        width = max(TILE_RUN, BLOCK // rows // TILE_RUN * TILE_RUN)
        return Way(rows, width, TILE_RUN, _in_tiles)
    return Way(n, max(512, 8 * BLOCK // n), 1, lambda rows: np.matmul(rows, rows.T), False)


def gram_of(rows: Float) -> Float:
    """`rows @ rows.T` of a few thousand columns, without waking the threads of a BLAS for so little."""
    n, columns = rows.shape
    way = way_for(n)
    padded = np.zeros((way.rows, -(-columns // way.multiple) * way.multiple), rows.dtype)
    padded[:n, :columns] = rows
    return mirror(way.product(padded).astype(np.float64)[:n, :n])


def _in_runs(rows: Host, run: int) -> Host:
    """The sum over runs of columns, in float64; each run's product is small (and made by syrk, one triangle)."""
    runs = rows.reshape(len(rows), -1, run).transpose(1, 0, 2)
    return np.matmul(runs, runs.transpose(0, 2, 1)).sum(axis=0, dtype=np.float64)


def _in_tiles(rows: Host) -> Host:
    """Squares of the lower triangle, each a sum of small products; the upper triangle is left as it comes."""
    count = len(rows) // TILE
    tiles = rows.reshape(count, TILE, -1, TILE_RUN).transpose(0, 2, 1, 3)  # (square, run, row, column)
    G = np.zeros((count, TILE, count, TILE))
    for i in range(count):
        for j in range(i + 1):
            np.matmul(tiles[i], tiles[j].transpose(0, 2, 1)).sum(axis=0, dtype=np.float64, out=G[i, :, j])
    return G.reshape(count * TILE, count * TILE)


def mirror(lower: Float) -> Float:
    """(..., n, n) matrices with these lower triangles, equal to their transposes to the last bit; NaN stays."""
    n = lower.shape[-1]
    below = np.arange(n)[:, None] >= np.arange(n)
    return np.where(below, lower, np.swapaxes(lower, -1, -2))
