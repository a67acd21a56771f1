"""Metrics and sizes that clients report: which reports are invalid, and the median of the others.

One liar can set a mean of reported losses to any value. Here every number is the median over the clients, weighted by
how far their updates were believed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias, cast

import numpy as np

from honestly.printable import brief_repr
from honestly.result import Float

Number: TypeAlias = int | float
Metrics: TypeAlias = Mapping[str, Number | Sequence[Number]]

#: A size this many times the median size is not believed; real federations differ by far less.
LARGEST_SIZE_RATIO = 1e4


def out_of_line(metrics: Mapping[Hashable, Metrics | None]) -> dict[Hashable, str]:
    """Clients whose metrics have other keys, kinds or lengths than those of half of the clients, with the reason.

    Where no form has that many votes nobody is out of line: clients that measure different things would lose their
    votes to the few that agree on something, who may be liars.

    Example:
        >>> out_of_line({1: {"loss": 0.1}, 2: {"loss": 0.3}, 3: {"loss": 0.2, "vote": 9}})
        {3: "metrics have the extra key 'vote'"}
    """
    forms = {client: _form(report) for client, report in metrics.items()}
    votes = Counter(tuple(sorted(form.items())) for form in forms.values())
    # of two forms with equally many votes, the one with fewer keys: an extra key is its sender's fault
    most = min(votes, key=lambda form: (-votes[form], len(form), form), default=())
    if 2 * votes[most] < len(forms):
        return {}
    usual = dict(most)
    return {client: _difference(form, usual) for client, form in forms.items() if form != usual}


def bad_sizes(sizes: Mapping[Hashable, Any]) -> dict[Hashable, str]:
    """Clients that report an impossible number of examples, with the reason.

    Example:
        >>> bad_sizes({1: 100, 2: -3, 3: 120, 4: 10**9})
        {2: 'reports -3 examples', 4: 'reports 1000000000 examples, more than 10000 times the median of 120'}
    """
    reasons: dict[Hashable, str] = {}
    believable: dict[Hashable, float] = {}
    for client, size in sizes.items():
        if not _is_number(size) or not _finite(size) or size < 0:
            reasons[client] = f"reports {brief_repr(size)} examples"
        else:
            believable[client] = float(size)
    if believable:
        # the upper median: half of the clients or more report less, so a minority cannot raise it
        median = sorted(believable.values())[len(believable) // 2]
        for client, size in believable.items():
            if len(believable) > 2 and size > LARGEST_SIZE_RATIO * max(median, 1.0):
                times = f"more than {LARGEST_SIZE_RATIO:.0f} times the median of {median:.6g}"
                reasons[client] = f"reports {brief_repr(sizes[client])} examples, {times}"
    return {client: reasons[client] for client in sizes if client in reasons}


def robust_metrics(metrics: Mapping[Hashable, Metrics], votes: Mapping[Hashable, float]) -> dict[str, Any]:
    """The median of every metric over the clients, weighted by their votes (1 for a client without one).

    A key counts if a majority of the votes reports it in the same form; values that are not finite are ignored.

    Example:
        >>> robust_metrics({1: {"loss": 0.1}, 2: {"loss": 0.3}, 3: {"loss": 1e9}}, {})
        {'loss': 0.3}
    """
    weight = {client: max(float(votes.get(client, 1.0)), 0.0) for client in metrics}
    if not any(weight.values()):
        weight = dict.fromkeys(metrics, 1.0)
    total = sum(weight.values())
    result: dict[str, Any] = {}
    for key in dict.fromkeys(key for report in metrics.values() for key in report):
        shares: dict[str, float] = {}
        for client, report in metrics.items():
            if key in report:
                shares[_kind(report[key])] = shares.get(_kind(report[key]), 0.0) + weight[client]
        kind, share = max(shares.items(), key=lambda item: item[1])
        if 2 * share <= total:
            continue
        chosen = [client for client, report in metrics.items() if key in report and _kind(report[key]) == kind]
        rows = np.array([_numbers(metrics[client][key]) for client in chosen], dtype=np.float64)
        medians = [_weighted_median(column, np.array([weight[client] for client in chosen])) for column in rows.T]
        if all(_finite(value) for value in medians):
            result[key] = medians if kind.startswith("list") else medians[0]
    return result


def _weighted_median(values: Float, weights: Float) -> float:
    usable = np.isfinite(values) & (weights > 0)
    values, weights = values[usable], weights[usable]
    if not len(values):
        return math.nan
    order = np.argsort(values, kind="stable")
    values = values[order]
    below: Float = np.cumsum(weights[order])
    half = 0.5 * below[-1]
    i = int(np.flatnonzero(below >= half * (1 - 1e-12))[0])
    if i + 1 < len(values) and math.isclose(below[i], half, rel_tol=1e-9):
        return float(0.5 * values[i] + 0.5 * values[i + 1])
    return float(values[i])


def _form(report: Metrics | None) -> dict[str, str]:
    return {} if report is None else {str(key): _kind(value) for key, value in report.items()}


def _kind(value: Any) -> str:
    if _is_number(value):
        return "number"
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if all(isinstance(item, Real) for item in items):
            return f"list of {len(items)}"
    return type(cast("object", value)).__name__


def _is_number(value: Any) -> bool:
    """Python's numbers and NumPy's, which some clients report for the same thing."""
    return not isinstance(value, bool) and isinstance(value, Real)


def _numbers(value: Any) -> list[float]:
    return [_float(item) for item in cast("list[Any]", value)] if isinstance(value, list | tuple) else [_float(value)]


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # an integer beyond float's range, or no number at all
        return math.nan


def _finite(value: Any) -> bool:
    return math.isfinite(_float(value))


def _difference(form: dict[str, str], usual: dict[str, str]) -> str:
    extra = [key for key in form if key not in usual]
    if extra:
        return f"metrics have the extra key {brief_repr(extra[0])}"
    missing = [key for key in usual if key not in form]
    if missing:
        return f"metrics lack the key {brief_repr(missing[0])}"
    key = next(key for key in form if form[key] != usual[key])
    return f"metric {brief_repr(key)} is a {form[key]}, not a {usual[key]}"
