"""Sort each column of a block of rows, with a network of whole-row minima and maxima.

A comparator puts the smaller of two rows' values in one row and the larger in another: two vector operations on
contiguous memory. Only what reaches a wanted rank is computed, so a median costs less than a sort, and a trimmed mean,
which need not tell the kept values apart, less still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from honestly.arrays import Host
from honestly.engine.passes.networks import SortingNetwork, Summary, selection_network, sorting_network
from honestly.rules._lib.windows import mean_of_rows
from honestly.rules.rule import ColumnRule, NearestRule

__all__ = ["LARGEST_NETWORK", "mean_of_rows", "network_of", "rank_device", "rank_rows", "summary_of"]

# Above this many rows, sorting the transposed block costs less than the network's O(m log^2 m) operations.
LARGEST_NETWORK = 80


def network_of(rule: ColumnRule, rows: int) -> SortingNetwork:
    """The network for the rule's ranks of this many rows; above `LARGEST_NETWORK` only `wanted` matters."""
    first, last = rule.ranks(rows)
    if rows > LARGEST_NETWORK:
        return SortingNetwork((), tuple(range(first, last)))
    return (selection_network if rule.averages else sorting_network)(rows, first, last)


def summary_of(rule: ColumnRule, rows: int) -> Summary | None:
    """What a kernel can make of the ranks in the same pass; None where the rule's own `reduce` must do it."""
    first, last = rule.ranks(rows)
    if rule.averages:
        return Summary("COUNT", last - first)
    return Summary("NEAREST", rule.nearest(rows)) if isinstance(rule, NearestRule) else None


class CompareExchange(NamedTuple):
    """`out = minimum(a, b)` or maximum: places among the rows of the block and then those of the scratch."""

    smaller: bool
    a: int
    b: int
    out: int


@lru_cache(maxsize=64)
def steps_of(network: SortingNetwork, rows: int) -> tuple[tuple[CompareExchange, ...], tuple[int, ...], int]:
    """The network as operations that leave the block as it is; where the wanted rows end up; how many scratch rows."""
    place, own = list(range(rows)), [False] * rows
    free: list[int] = []
    used = rows
    steps: list[CompareExchange] = []

    def another() -> int:
        nonlocal used
        if free:
            return free.pop()
        used += 1
        return used - 1

    for low, high, keep_min, keep_max in network.comparators:
        a, b = place[low], place[high]
        mine = [place[row] for row in (low, high) if own[row]]
        if keep_min and keep_max:  # the second operation may overwrite what the first has read
            place[low] = another()
            steps.append(CompareExchange(True, a, b, place[low]))
            place[high] = mine.pop() if mine else another()
            steps.append(CompareExchange(False, a, b, place[high]))
            own[low] = own[high] = True
        else:
            winner, loser = (low, high) if keep_min else (high, low)
            place[winner] = mine.pop() if mine else another()
            steps.append(CompareExchange(keep_min, a, b, place[winner]))
            own[winner], own[loser] = True, False
        free += mine
    return tuple(steps), tuple(place[row] for row in network.wanted), used - rows


def rank_rows(
    block: Host | Sequence[Host], network: SortingNetwork, scratch: Callable[[int], Host] | None = None
) -> Sequence[Host]:
    """The wanted rows of the m x b block, or of m rows of b values, after each column has passed through the network.

    `scratch` returns rows of the block's width to work in: reused memory causes no page faults.
    """
    rows, width, dtype = len(block), len(block[0]), block[0].dtype
    if rows > LARGEST_NETWORK:
        first = network.wanted[0]
        return list(np.sort(np.asarray(block).T.copy(order="C"), axis=1).T[first : first + len(network.wanted)])
    steps, wanted, extra = steps_of(network, rows)
    slots = [*block, *(np.empty((extra, width), dtype) if scratch is None else scratch(extra))]
    minimum, maximum = np.minimum, np.maximum
    for smaller, a, b, out in steps:
        (minimum if smaller else maximum)(slots[a], slots[b], out=slots[out])
    return [slots[place] for place in wanted]


def rank_device(block: Any, xp: Any, network: SortingNetwork) -> Any:
    """The same on an accelerator: the network for few rows, the library's sort for many."""
    rows = block.shape[0]
    if rows > LARGEST_NETWORK:
        return xp.sort(block, axis=0)[network.wanted[0] : network.wanted[-1] + 1, ...]
    slots = [block[i, ...] for i in range(rows)]
    minimum: Callable[..., Any] = xp.minimum
    maximum: Callable[..., Any] = xp.maximum
    for low, high, keep_min, keep_max in network.comparators:
        a, b = slots[low], slots[high]
        if keep_min:
            slots[low] = minimum(a, b)
        if keep_max:
            slots[high] = maximum(a, b)
    return xp.stack([slots[row] for row in network.wanted])
