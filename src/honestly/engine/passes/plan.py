"""How the columns are cut into blocks: small leaves share a block, large ones are split."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from honestly.arrays import COMPUTE
from honestly.cores import usable_cores
from honestly.sources import Layer, Leaf

T = TypeVar("T")


class Segment(NamedTuple):
    """Columns start..stop of one leaf, which stand at offset.. in the block."""

    leaf: int
    start: int
    stop: int
    offset: int


class Block(NamedTuple):
    """A run of columns of one working precision, and of one layer where blocks are asked for by layer."""

    dtype: type[np.floating]
    width: int
    segments: tuple[Segment, ...]
    layer: int = 0


def blocks(
    leaves: Sequence[Leaf], width: int, layers: Sequence[Layer] | None = None, only: Sequence[int] | None = None
) -> Iterator[Block]:
    """All columns, in order, in blocks of at most `width` columns; none crosses the bounds of `layers`, if given.

    With `only`, the columns of these layers.
    """
    if layers is None:
        yield from _cut(leaves, [(index, 0, leaf.size) for index, leaf in enumerate(leaves)], width, 0)
        return
    for index in range(len(layers)) if only is None else only:
        yield from _cut(leaves, layers[index].spans, width, index)


def _cut(leaves: Sequence[Leaf], spans: Sequence[tuple[int, int, int]], width: int, layer: int) -> Iterator[Block]:
    segments: list[Segment] = []
    filled, dtype = 0, np.float32
    for index, start, end in spans:
        needed = COMPUTE[leaves[index].spec.dtype]
        if segments and needed is not dtype:
            yield Block(dtype, filled, tuple(segments), layer)
            segments, filled = [], 0
        dtype = needed
        while start < end:
            stop = min(end, start + width - filled)
            segments.append(Segment(index, start, stop, filled))
            filled += stop - start
            start = stop
            if filled == width:
                yield Block(dtype, filled, tuple(segments), layer)
                segments, filled = [], 0
    if segments:
        yield Block(dtype, filled, tuple(segments), layer)


#: Variables by which users limit the threads of numerical libraries, and so ours.
LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
#: Where a container says how much of the processors it may use: microseconds per period, and the period.
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def threads() -> int:
    """The number of threads that share the work: HONESTLY_THREADS, else the cores that this process may use, at most 16
    and at most the user's limit for numerical libraries."""
    number = _number("HONESTLY_THREADS")
    if number:
        return number
    limits = [limit for name in LIMITS if (limit := _number(name))]
    return min([16, usable_cores(), _quota(), *limits])


def _number(name: str) -> int:
    """The number that a variable holds ("4", or OpenMP's "4,2"), or 0."""
    text = os.environ.get(name, "").partition(",")[0].strip()
    return int(text) if text.isdecimal() else 0


@cache
def _quota() -> int:
    """Whole cores that the container may use; a large number if there is no limit."""
    try:
        allowed, period = QUOTA.read_text().split()
        return max(1, math.ceil(int(allowed) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):  # "max" is not a number
        return 1 << 30


# Blocks that a thread works on before it returns its results: returning takes Python's lock and wakes a thread,
# which costs about as much as a block of a megabyte.
BATCH = 16


def in_order(work: Callable[[Block], T], todo: Iterable[Block], workers: int, batch: int = BATCH) -> Iterator[T]:
    """`map(work, todo)` on several threads. Results come in the order of the blocks, so sums over them have the
    same bits whatever the number of threads; at most two batches per thread are in flight."""
    if workers == 1:
        yield from map(work, todo)
        return
    every = list(todo)
    size = max(1, min(batch, len(every) // (4 * workers)))
    pool = ThreadPoolExecutor(workers, thread_name_prefix="honestly")
    try:
        waiting: deque[Future[list[T]]] = deque()
        for start in range(0, len(every), size):
            if len(waiting) == 2 * workers:
                yield from waiting.popleft().result()
            some = every[start : start + size]
            try:
                waiting.append(pool.submit(lambda blocks=some: [work(block) for block in blocks]))
            except RuntimeError:  # no threads left, or the interpreter is shutting down: work in this thread
                while waiting:
                    yield from waiting.popleft().result()
                yield from map(work, some)
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
