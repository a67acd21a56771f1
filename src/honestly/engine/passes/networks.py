"""Comparator networks: which pairs of rows to compare so that some ranks come out, or the extremes are set apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from honestly.engine.passes.medians import MEDIAN_PAIRS


class Comparator(NamedTuple):
    """The smaller value goes to row `low`, the larger to row `high`; whether each is still wanted."""

    low: int
    high: int
    keep_min: bool
    keep_max: bool


class SortingNetwork(NamedTuple):
    """Comparators in order, and the rows that hold the wanted values at the end."""

    comparators: tuple[Comparator, ...]
    wanted: tuple[int, ...]

    @property
    def operations(self) -> int:
        """The number of minima and maxima to compute."""
        return sum(c.keep_min + c.keep_max for c in self.comparators)


class Summary(NamedTuple):
    """What a kernel makes of the wanted rows of a column: the mean of all, or of those nearest to the median."""

    define: str  # COUNT or NEAREST
    number: int


Pairs = list[tuple[int, int]]


@lru_cache(maxsize=64)
def sorting_network(rows: int, first: int, last: int) -> SortingNetwork:
    """Ranks first..last (exclusive) of `rows` values, in order: Batcher's odd-even merge sort without the rest."""
    return _without_idle(_batcher(range(rows)), tuple(range(first, last)))


@lru_cache(maxsize=64)
def selection_network(rows: int, first: int, last: int) -> SortingNetwork:
    """The values of ranks first..last (exclusive) in any order.

    With g values to drop at each end, sorted groups of g are split in pairs into their lower and their upper g values.
    Nothing from a lower part can be among the g largest of all, for its own upper part lies above it; so only lower
    parts go on to find the g smallest, and only upper parts to find the g largest. Groups without a partner meet the
    winners of both sides. Medians of few rows are in a table.
    """
    ordered = sorting_network(rows, first, last)
    g = first
    if g == 0 or rows - last != g:
        return ordered
    if last - first <= 2 and rows in MEDIAN_PAIRS:
        letters = [ord(letter) - ord("a") for letter in MEDIAN_PAIRS[rows]]
        return _without_idle(list(zip(letters[::2], letters[1::2], strict=True)), tuple(range(first, last)))
    pairs: Pairs = []
    groups = [list(range(start, min(start + g, rows))) for start in range(0, rows, g)]
    whole = [group for group in groups if len(group) == g]
    for group in groups:
        pairs += _batcher(group)
    half = len(whole) // 2
    single = groups[2 * half :]
    low, high = whole[0], whole[1]
    for i in range(half):
        a, b = whole[2 * i], whole[2 * i + 1]
        pairs += _split(a, b)
        pairs += _bitonic(a) + _bitonic(b)
        if i:
            pairs += _split(low, a) + _split(b, high) + _bitonic(low) + _bitonic(high)
    for group in single:
        # What comes here from `low` is none of the largest, the rest is still in order: no need to sort in between.
        pairs += _split(low, group) + _bitonic(low) + _split(group, high) + _bitonic(high)
    dropped = {*low, *high}
    selection = _without_idle(pairs, tuple(row for row in range(rows) if row not in dropped))
    return selection if selection.operations < ordered.operations else ordered


def _split(low: Sequence[int], high: Sequence[int]) -> Pairs:
    """Two sorted groups: the smallest values of both go to the rows of `low`, the largest to those of `high`.

    If one group is smaller, so many of the values that the larger one cannot keep are exchanged.
    """
    count = min(len(low), len(high))
    return list(zip(low[len(low) - count :], reversed(high[:count]), strict=True))


def _bitonic(rows: Sequence[int]) -> Pairs:
    """Sort values that first rise and then fall, or the other way round, as a split leaves them."""
    if len(rows) & (len(rows) - 1):
        return _batcher(rows)
    pairs: Pairs = []
    step = len(rows) // 2
    while step:
        pairs += [(rows[i], rows[i + step]) for i in range(len(rows)) if not i & step]
        step //= 2
    return pairs


def _batcher(rows: Sequence[int]) -> Pairs:
    """Sort any number of rows: the network of the next power of two without the rows beyond."""
    pairs: Pairs = []
    count, p = len(rows), 1
    while p < count:
        k = p
        while k >= 1:
            for j in range(k % p, count - k, 2 * k):
                for i in range(min(k, count - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((rows[i + j], rows[i + j + k]))
            k //= 2
        p *= 2
    return pairs


def _without_idle(pairs: Pairs, wanted: tuple[int, ...]) -> SortingNetwork:
    """The comparators that reach a wanted row, with what of their results does."""
    needed = set(wanted)
    comparators: list[Comparator] = []
    for low, high in reversed(pairs):
        if low in needed or high in needed:
            comparators.append(Comparator(low, high, low in needed, high in needed))
            needed |= {low, high}
    return SortingNetwork(tuple(reversed(comparators)), wanted)
