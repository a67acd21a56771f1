"""Limits on the sizes that clients report: no minority of clients gets a majority of the weight.

A size is a claim. It is used up to a cap: the largest at which the f largest sizes together weigh no more than the
others, and never more than three times the median. docs/explanation/sizes.md derives it and says what it can cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from honestly.result import AggregationError, Float

if TYPE_CHECKING:
    from honestly.rules.rule import Geometry, Mix, Rule

#: A size counts for at most this many times the median claim, however few may lie.
MOST_MEDIANS = 3.0


def positive(claims: Float) -> Float:
    """The claims with 0 for invalid ones: NaN, infinity, a negative number."""
    s = np.asarray(claims, dtype=np.float64)
    return np.where(np.isfinite(s) & (s > 0), s, 0.0)


def reported_sizes(rule: Rule, geometry: Geometry) -> Float:
    """(K,) the sizes that a rule cannot do without, 0 for invalid ones; an error if there are none."""
    if geometry.sizes is None:
        raise ValueError(f"{rule!r} needs the clients' sizes: pass sizes= and put no mixer in front")
    s = positive(geometry.sizes)
    if not s.any():
        raise AggregationError(f"{rule!r}: none of the {geometry.K} clients reported a size above 0")
    return s


def used_sizes(claims: Float, f: int | None = None) -> Float:
    """(K,) the sizes that count, the largest of them 1: `min(claim, T) / T`.

    T is the largest cap with `sum of the f largest min(s, T) <= sum of the others`, and at most three medians. If fewer
    than 2f clients claim a size, no cap achieves that: claims are then ignored, and all sizes are 1.

    Args:
        claims: (K,) what the clients say.
        f: how many of them may lie; None: fewer than half.

    Example:
        >>> used_sizes(np.array([50.0, 100.0, 100.0, 200.0, 1e9])).round(2)
        array([0.4, 0.8, 0.8, 1. , 1. ])
    """
    s = positive(claims)
    K = len(s)
    most = (K - 1) // 2
    f = max(1, most if f is None else min(f, most))  # of two clients one may be wrong
    a = np.sort(s)
    few = K - f  # the smaller ones
    if K < 2 or a[few - 1] == 0.0:
        return np.ones(K)
    with np.errstate(over="ignore", under="ignore"):  # infinity is beyond every cap
        s, a = s / a[few - 1], a / a[few - 1]
    if np.count_nonzero(a) < 2 * f:
        return np.ones(K)
    a = np.minimum(a, few)  # a size above the sum of the others must be capped
    cap = _cap(np.minimum(a, MOST_MEDIANS * float(np.median(a[a > 0]))), f)
    return np.minimum(s, cap) / cap


def _cap(a: Float, f: int) -> float:
    """T for sorted sizes. With T growing, what the others weigh beyond the f largest rises, then falls."""
    K, few = len(a), len(a) - f
    below = np.concatenate([[0.0], np.cumsum(a)])
    i = np.arange(K)
    others = np.where(i < few, below[i + 1] + np.maximum(few - 1 - i, 0) * a, below[few])
    largest = np.where(i < few, f * a, below[i + 1] - below[few] + (K - 1 - i) * a)
    beyond = others - largest
    fits = beyond >= -1e-12 * (others + largest)
    if fits[-1]:
        return float(a[-1])
    last = int(np.flatnonzero(fits)[-1])  # the cap lies between this size and the next
    rise = (beyond[last + 1] - beyond[last]) / (a[last + 1] - a[last])
    return float(a[last] - max(beyond[last], 0.0) / rise)


def size_shares(claims: Float, used: Float) -> dict[str, Float]:
    """For the report: each client's share of all that was claimed, and of all that is used."""
    claimed = positive(claims)
    top = float(claimed.max(initial=0.0))
    claimed = claimed / top if top else claimed  # sizes near the largest float must not overflow the sum
    total = float(claimed.sum())
    return {"claimed_shares": claimed / total if total else claimed, "used_shares": used / used.sum()}


def reweight(matrix: Float, used: Float) -> Float:
    """(m, K) rows with each weight times the client's size and the same sums; rows where that is 0 stay."""
    scaled = matrix * used
    totals = scaled.sum(axis=1, keepdims=True)
    fine = (matrix >= 0).all(axis=1, keepdims=True) & (totals > 0)
    rows: Any = np.where(fine, scaled * (matrix.sum(axis=1, keepdims=True) / np.where(fine, totals, 1.0)), matrix)
    return rows


def by_size(mix: Mix, claims: Float, f: Any = None) -> Mix:
    """The same with each client's weight times its size, capped for as many liars as the rule expects (or a minority):
    what a rule that knows no sizes makes of them."""
    used = used_sizes(claims, f if isinstance(f, int) else None)
    rows = None if mix.by_layer is None else reweight(mix.by_layer, used)
    diagnostics = {**mix.diagnostics, **size_shares(claims, used)}
    return replace(mix, matrix=reweight(mix.matrix, used), by_layer=rows, diagnostics=diagnostics)
