"""The runs of a study, round by round: one chart per setting, one curve per rule."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean

from honestly.runs.reader import Rounds
from honestly.show.chart import Chart, Line
from honestly.show.maps import curve
from honestly.show.report.generic import ATTACK, METRIC_WORDS, RULE
from honestly.show.report.results import METRICS, Result, axes_of, default_first, is_warm_up

#: The most charts; a larger study has one page per run.
MOST_CHARTS = 6
#: Metric -> round -> number.
Series = Mapping[str, Mapping[int, float]]


def series_of(rounds: Rounds) -> Series:
    """The measured values by metric and round."""
    return {metric: dict(zip(*curve(rounds.records, key), strict=True)) for metric, key in METRICS.items()}


def by_round(results: Sequence[Result], series: Mapping[str, Series]) -> list[Chart]:
    """A chart for each metric, attack and setting of the other axes; none if there would be too many."""
    chosen = [r for r in results if r.entry.id in series and not is_warm_up(r.cell)]
    axes = axes_of(r.cell for r in chosen)
    rules = default_first(axes.pop(RULE, [""]), chosen)
    charts: list[Chart] = []
    for values in itertools.product(*axes.values()):
        where = dict(zip(axes, values, strict=True))
        here = [r for r in chosen if all(r.cell.get(a) == v for a, v in where.items())]
        named = [f"{v}" if a in (ATTACK, "dataset") else f"{a} {v}" for a, v in where.items() if len(axes[a]) > 1]
        for metric, words in METRIC_WORDS.items():
            lines = [
                line
                for rule in rules
                if (line := _line(rule, [series[r.entry.id][metric] for r in here if r.cell.get(RULE, "") == rule]))
            ]
            if lines:
                last = max(x for line in lines for x in line.xs)
                title = f"{words}, {', '.join(named)}" if named else words
                charts.append(Chart(title, "round", words, lines, xlim=(1.0, max(last, 2.0))))
    return charts if len(charts) <= MOST_CHARTS else []


def _line(rule: object, runs: Sequence[Mapping[int, float]]) -> Line | None:
    """The mean over the seeds that have reached each round."""
    rounds = sorted({n for run in runs for n in run})
    if not rounds:
        return None
    return Line(str(rule), rounds, [fmean(run[n] for run in runs if n in run) for n in rounds])
