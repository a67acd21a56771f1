"""Products of a block of rows with itself by NumPy, for machines without the compiled kernels.

Products of up to 2^18 multiplications are made by the thread that asks for them, whatever the kernels of the BLAS
(OpenBLAS starts threads of its own beyond that, which then wait for ours): blocks are cut to that size and shared by
our threads. OpenBLAS has fast kernels for small products on processors with AVX-512, but for gemm only. There the rows
are multiplied with themselves and a row of zeros: NumPy gives a matrix and its transpose to syrk, at half the speed.
Beyond some hundred rows one ordinary product, with the threads of the BLAS and none of ours, is faster.
(threadpoolctl could limit those threads instead; the core has NumPy alone, and its limit would hold for the caller's
other threads, too.) No way relies on what a BLAS makes of the two triangles: the lower one counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from honestly.arrays import Host
from honestly.result import Float

SMALL_PRODUCT = 1 << 18
# The same for a vector times a matrix, and the most rows for which that leaves runs worth a call.
SMALL_VECTOR_PRODUCT, MOST_VECTOR_ROWS = 9216, 64
# A block of this many values (1 MiB in float32) stays in a core's second-level cache between its two uses.
BLOCK = 1 << 18
# Rows and columns whose product is small, to make one square of the Gram matrix; the most rows that stay in cache.
TILE, TILE_RUN, MOST_TILED = 32, 256, 96
# What OpenBLAS calls processors with AVX-512, and what NumPy does.
WIDE_CORES = frozenset({"skylakex", "cooperlake", "sapphirerapids"})
WIDE_FEATURES = frozenset({"X86_V4", "AVX512_SKX"})
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
        in_place: n rows of any width, where they lie -> the same, if that is as fast.
    """

    rows: int
    width: int
    multiple: int
    product: Callable[[Host], Host]
    own_threads: bool = True
    in_place: Callable[[Host], Host] | None = None


def way_for(n: int) -> Way:
    """The fastest way for n rows."""
    run = min(2048, SMALL_PRODUCT // (n * n) // 32 * 32)
    if run >= SHORTEST_RUN:
        width = max(run, BLOCK // n // run * run)
        if wide_kernels():
            return Way(
                n + 1, width, run, lambda rows: _in_runs(rows, run, 1), True, lambda rows: _in_place(rows, run, 1)
            )
        return Way(n, width, run, lambda rows: _in_runs(rows, run, 0), True, lambda rows: _in_place(rows, run, 0))
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


@cache
def wide_kernels() -> bool:
    """Whether the BLAS is an OpenBLAS whose kernels for AVX-512 run here. By class, not by a measurement: the same
    machine always gives the same bits."""
    config: Any = np.show_config(mode="dicts")
    chosen = os.environ.get("OPENBLAS_CORETYPE", "").lower()
    if "openblas" not in str(config.get("Build Dependencies", {}).get("blas", {}).get("name", "")).lower():
        return False
    if chosen:
        return chosen in WIDE_CORES
    return bool(WIDE_FEATURES & set(config.get("SIMD Extensions", {}).get("found", ())))


def _in_runs(rows: Host, run: int, zeros: int) -> Host:
    """The sum over runs of columns, in float64; each run's product is small (and made by syrk if no rows are zeros)."""
    runs = rows.reshape(len(rows), -1, run).transpose(1, 0, 2)
    return np.matmul(runs[:, : len(rows) - zeros], runs.transpose(0, 2, 1)).sum(axis=0, dtype=np.float64)


def _in_place(rows: Host, run: int, fewer: int) -> Host:
    """The same of rows where they lie, with the last columns in a shorter run. Where syrk is slow, all rows are
    multiplied with all but the last, whose norm follows."""
    n, width = rows.shape
    whole = width // run * run
    G = np.zeros((n, n))
    for some, length in ((rows[:, :whole], run), (rows[:, whole:], width - whole)):
        if length and some.size:
            runs = some.reshape(n, -1, length).transpose(1, 0, 2)
            others = runs[:, : n - fewer].transpose(0, 2, 1)
            G[:, : n - fewer] += np.matmul(runs, others).sum(axis=0, dtype=np.float64)
            if fewer:
                G[-1, -1] += np.vecdot(runs[:, -1], runs[:, -1]).sum(dtype=np.float64)
    return G


def _in_tiles(rows: Host) -> Host:
    """Squares of the lower triangle, each a sum of small products; the upper triangle is left as it comes."""
    count = len(rows) // TILE
    tiles = rows.reshape(count, TILE, -1, TILE_RUN).transpose(0, 2, 1, 3)  # (square, run, row, column)
    G = np.zeros((count, TILE, count, TILE))
    for i in range(count):
        for j in range(i + 1):
            np.matmul(tiles[i], tiles[j].transpose(0, 2, 1)).sum(axis=0, dtype=np.float64, out=G[i, :, j])
    return G.reshape(count * TILE, count * TILE)


def weigh_rows(weights: Host, rows: Host, out: Host) -> None:
    """`out = weights @ rows` for some dozen rows, in runs of columns whose product is small."""
    n, width = rows.shape
    run = SMALL_VECTOR_PRODUCT // n // 32 * 32
    whole = width // run * run
    if whole:
        np.matmul(weights, rows[:, :whole].reshape(n, -1, run).transpose(1, 0, 2), out=out[:whole].reshape(-1, run))
    if whole < width:
        np.matmul(weights, rows[:, whole:], out=out[whole:])


def mirror(lower: Float) -> Float:
    """(..., n, n) matrices with these lower triangles, equal to their transposes to the last bit; NaN stays."""
    n = lower.shape[-1]
    below = np.arange(n)[:, None] >= np.arange(n)
    return np.where(below, lower, np.swapaxes(lower, -1, -2))
