"""The ablation's curves: how accuracy and attack success change with the share of malicious clients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from honestly.show.chart import Chart, Line
from honestly.show.report.generic import ATTACK, METRIC_WORDS, RULE, SHARE
from honestly.show.report.results import Result, axes_of, default_first, is_warm_up, mean_of, usual_statistic


def ablation(results: Sequence[Result]) -> list[Chart]:
    """One chart for each attack, metric and setting of the other axes; none unless the share of liars is an axis."""
    chosen = [r for r in results if SHARE in r.cell and not is_warm_up(r.cell)]
    axes = axes_of(r.cell for r in chosen)
    shares = sorted(v for v in axes.pop(SHARE, []) if isinstance(v, int | float))
    if len(shares) < 2:
        return []
    rules = default_first(axes.pop(RULE, [""]), chosen)
    attacks = axes.pop(ATTACK, [""])
    charts: list[Chart] = []
    for values in itertools.product(*axes.values()):
        where = dict(zip(axes, values, strict=True))
        here = [r for r in chosen if all(r.cell.get(a) == v for a, v in where.items())]
        for attack, metric in itertools.product(attacks, METRIC_WORDS):
            lines = [line for rule in rules if (line := _line(here, rule, attack, metric, shares)) is not None]
            if lines:
                named = [str(attack), *(f"{v}" if a == "dataset" else f"{a} {v}" for a, v in where.items())]
                title = f"{METRIC_WORDS[metric]} under {', '.join(part for part in named if part)}"
                low, high = min(shares), max(shares)
                charts.append(
                    Chart(title, "malicious clients (share)" if high < 1 else "malicious clients", METRIC_WORDS[metric],
                          lines, xlim=(low, high), dots=True)
                )  # fmt: skip
    return charts


def _line(results: Sequence[Result], rule: Any, attack: Any, metric: str, shares: Sequence[float]) -> Line | None:
    statistic = usual_statistic(results)
    points: list[tuple[float, float, float]] = []
    for share in shares:
        mine = [r for r in results if r.cell.get(RULE, "") == rule and r.cell[SHARE] == share]
        same = [r for r in mine if r.cell.get(ATTACK, "") == attack]
        if not same and share == 0 and metric == "ACC":
            same = mine  # without attackers, all attacks are the same run
        mean = mean_of([r.get(metric, statistic) for r in same])
        # without attackers the success rate is not defined
        if mean is not None and not (share == 0 and metric == "ASR"):
            points.append((share, mean.mean, mean.sd or 0.0))
    if not points:
        return None
    xs, ys, spread = (list(column) for column in zip(*points, strict=True))
    return Line(str(rule), xs, ys, spread)
