"""Means of some of the sorted values of each coordinate."""

from __future__ import annotations

from typing import Any


def mean_nearest_to_median(ranked: Any, count: int, xp: Any) -> Any:
    """For each column of `ranked`, sorted, the mean of the `count` values nearest to its median.

    The nearest values are a window of the sorted ones: it moves up as long as the value that it gains is nearer than
    the one that it loses. The window is summed directly, never as a difference of running sums, which an outlier of
    1e12 would destroy. Of two values that are equally near, the lower is taken.
    """
    m = ranked.shape[0]
    lower, upper = ranked[(m - 1) // 2, ...], ranked[m // 2, ...]
    median = lower if m % 2 else 0.5 * lower + 0.5 * upper

    start = xp.zeros_like(median)  # a count of rows, as a float: exact, and no second dtype is needed
    for i in range(m - count):
        nearer = ranked[i + count, ...] - median < median - ranked[i, ...]
        start = xp.where(nearer, xp.full_like(start, i + 1), start)

    total = xp.zeros_like(median)
    nothing = xp.zeros_like(median)
    for i in range(m):
        total = total + xp.where((start <= i) & (i < start + count), ranked[i, ...], nothing)
    return total / count


def mean_of_rows(rows: Any) -> Any:
    """The mean of some rows, (n, b) or a list of n, as a new one.

    Two are halved before they are added: values near the largest float must not overflow.

    Example:
        >>> import numpy as np
        >>> mean_of_rows(np.array([[1.5e308], [1.7e308]]))
        array([1.6e+308])
    """
    row_list: list[Any] = rows if isinstance(rows, list) else [rows[i, ...] for i in range(rows.shape[0])]
    if len(row_list) <= 2:
        total = row_list[0] * (1.0 / len(row_list))
        if len(row_list) == 2:
            total += row_list[1] * 0.5
        return total
    total = row_list[0] + row_list[1]
    for row in row_list[2:]:
        total += row
    total *= 1.0 / len(row_list)
    return total
