"""Sort each column of a block of rows, with a network of whole-row minima and maxima.

A comparator `(i, j)` puts the smaller of two rows' values in row i and the larger in row j: two vector operations on
contiguous memory. Only the comparators that reach a wanted rank are kept, so a median costs less than a sort.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from honestly.arrays import Host

# Above this many rows, sorting the transposed block costs less than the network's O(m log^2 m) operations.
LARGEST_NETWORK = 80


class Comparator(NamedTuple):
    """Rows low < high; whether the smaller and the larger value are still wanted."""

    low: int
    high: int
    keep_min: bool
    keep_max: bool


@lru_cache(maxsize=64)
def network(rows: int, first: int, last: int) -> tuple[Comparator, ...]:
    """Batcher's odd-even merge sort of `rows` values, without what ranks first..last (exclusive) do not need."""
    wanted = set(range(first, last))
    kept: list[Comparator] = []
    for low, high in reversed(_batcher(rows)):
        if low in wanted or high in wanted:
            kept.append(Comparator(low, high, low in wanted, high in wanted))
            wanted |= {low, high}
    return tuple(reversed(kept))


def _batcher(rows: int) -> list[tuple[int, int]]:
    """Comparators for any number of rows: the network of the next power of two without the rows beyond."""
    found: list[tuple[int, int]] = []
    p = 1
    while p < rows:
        k = p
        while k >= 1:
            for j in range(k % p, rows - k, 2 * k):
                for i in range(min(k, rows - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        found.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return found


def rank_rows(block: Host, first: int, last: int) -> Host:
    """Rows first..last (exclusive) of the m x b block when each of its columns is sorted. The block is overwritten."""
    rows, width = block.shape
    if rows > LARGEST_NETWORK:
        return np.sort(block.T.copy(order="C"), axis=1).T[first:last]
    held, spare = list(block), np.empty(width, block.dtype)
    for low, high, keep_min, keep_max in network(rows, first, last):
        a, b = held[low], held[high]
        if keep_min and keep_max:
            np.minimum(a, b, out=spare)
            np.maximum(a, b, out=b)
            held[low], spare = spare, a
        elif keep_min:
            np.minimum(a, b, out=a)
        else:
            np.maximum(a, b, out=b)
    return np.stack(held[first:last])


def rank_device(block: Any, xp: Any, first: int, last: int) -> Any:
    """The same on an accelerator, without overwriting: the network for few rows, the library's sort for many."""
    rows = block.shape[0]
    if rows > LARGEST_NETWORK:
        return xp.sort(block, axis=0)[first:last, ...]
    held = [block[i, ...] for i in range(rows)]
    minimum: Callable[..., Any] = xp.minimum
    maximum: Callable[..., Any] = xp.maximum
    for low, high, keep_min, keep_max in network(rows, first, last):
        a, b = held[low], held[high]
        if keep_min:
            held[low] = minimum(a, b)
        if keep_max:
            held[high] = maximum(a, b)
    return xp.stack(held[first:last])
