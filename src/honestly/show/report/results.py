"""The results of runs, and their mean and spread over the seeds of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from honestly.runs.reader import Rounds
from honestly.runs.record import ACCURACY, ASR
from honestly.show.report.detection import Statements, statements
from honestly.show.report.sources import ReportedRun
from honestly.sim.summary import LAST, summary

SEED, DEFAULT_RULE = "seed", "bayesian"
#: What a table shows: the last round, as the paper's tables seem to, and the mean of the last 20, as its ablation does.
STATISTICS = {"last": "last round", "mean_last_20": "mean of the last 20 rounds"}
METRICS = {"ACC": ACCURACY, "ASR": ASR}


@dataclass(frozen=True)
class Result:
    """A run and its numbers.

    Attributes:
        entry: the run.
        numbers: its summary.
        statements: what its rule said of the clients; None if it said nothing.
        spans: metric -> the lowest and the highest value in the last 20 rounds.
    """

    entry: ReportedRun
    numbers: Mapping[str, Any]
    statements: Statements | None
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @property
    def done(self) -> bool:
        """Only finished runs enter tables."""
        return self.entry.status == "done"

    @property
    def long(self) -> bool:
        """Whether the run has at least 20 rounds."""
        return max(self.entry.of, self.entry.rounds) >= LAST

    @property
    def cell(self) -> Mapping[str, Any]:
        """Axis -> value."""
        return self.entry.cell

    def get(self, metric: str, statistic: str) -> float | None:
        """The number for a table, such as ("ACC", "last"); there is no mean of the last 20 of fewer rounds."""
        if statistic == "mean_last_20" and not self.long:
            return None
        return self.numbers.get(f"{METRICS[metric]}_{statistic}") if self.done else None


def examine(entries: Sequence[ReportedRun], each: Callable[[ReportedRun, Rounds], None] | None = None) -> list[Result]:
    """Read every run once; `each` is called with its rounds, which are then released."""
    results: list[Result] = []
    for entry in entries:
        if not entry.rounds and entry.status != "done":
            results.append(Result(entry, {}, None))
            continue
        rounds = entry.read()
        numbers = summary(rounds.records) if rounds.records else entry.summary
        results.append(Result(entry, numbers, statements(rounds) if rounds.known else None, _spans(rounds)))
        if each is not None:
            each(entry, rounds)
    return results


def _spans(rounds: Rounds) -> dict[str, tuple[float, float]]:
    spans: dict[str, tuple[float, float]] = {}
    for metric, key in METRICS.items():
        values = [v for r in rounds.records[-LAST:] if (v := getattr(r, key)) is not None]
        if values:
            spans[metric] = (min(values), max(values))
    return spans


@dataclass(frozen=True)
class SeedMean:
    """Mean over seeds, standard deviation (None for a single seed) and how many there were."""

    mean: float
    sd: float | None
    n: int

    def text(self, digits: int = 3) -> str:
        """The mean and the standard deviation as text.

        >>> SeedMean(0.88, 0.002, 3).text(), SeedMean(0.5, None, 1).text()
        ('0.880 ± 0.002', '0.500')
        """
        return f"{self.mean:.{digits}f}" + ("" if self.sd is None else f" ± {self.sd:.{digits}f}")


def mean_of(values: Sequence[float | None]) -> SeedMean | None:
    """The mean of the known values; None if there are none."""
    known = [v for v in values if v is not None]
    return SeedMean(fmean(known), stdev(known) if len(known) > 1 else None, len(known)) if known else None


def axes_of(cells: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Axis -> its values: numbers by size, others in the order in which they come; the seed is not an axis."""
    axes: dict[str, list[Any]] = {}
    for cell in cells:
        for axis, value in cell.items():
            if axis != SEED and value not in axes.setdefault(axis, []):
                axes[axis].append(value)
    numeric = [axis for axis, values in axes.items() if all(isinstance(v, int | float) for v in values)]
    return axes | {axis: sorted(axes[axis]) for axis in numeric}


def default_first(rules: Sequence[Any], results: Sequence[Result]) -> list[Any]:
    """The labels of rules with the default rule in front, which is drawn as the first, blue curve on every page."""
    ours = {r.cell.get("rule") for r in results if r.entry.rule == DEFAULT_RULE}
    return sorted(rules, key=lambda rule: rule not in ours)


def same(a: Any, b: Any) -> bool:
    """Whether two values of an axis are the same, whether written as a number or as text.

    >>> same(1.0, "1"), same("Krum", "krum")
    (True, False)
    """
    try:
        return float(a) == float(b)
    except (TypeError, ValueError):
        return str(a) == str(b)


def usual_statistic(results: Sequence[Result]) -> str:
    """The mean of the last 20 rounds, as in the paper's ablation, if all runs have as many; else the last round."""
    return "mean_last_20" if all(r.long for r in results if r.done) else "last"


def is_warm_up(cell: Mapping[str, Any]) -> bool:
    """Warm-ups are runs that others start from; no table names them."""
    return "warm_up" in cell
