"""Cells of the paper's tables with another number of rounds: beside the published numbers, never counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from honestly.show.report.published import (
    ATTACKS,
    DATASETS,
    EXTRA,
    ROUNDS,
    RULES,
    Column,
    Key,
    fits,
    key_of,
    of_the_paper,
    published_numbers,
)
from honestly.show.report.results import STATISTICS, Result, mean_of
from honestly.show.tables import Cell, Table

NOTE = (
    "These are not the paper's experiments: of its 540 numbers, those with half of its rounds are counted apart, "
    "others as not run. Beside each of ours stands what the paper has after {paper} rounds. "
    "Mean over seeds, ± standard deviation where there are several."
)


class RoundsColumn(NamedTuple):
    """A column: the metric, the number of rounds, and the number of rounds without attack before them."""

    column: Column
    rounds: int
    warm_up: int

    def head(self) -> str:
        """The heading of the column."""
        attack, alpha, metric = self.column
        before = f" after {self.warm_up} without attack" if self.warm_up else ""
        return f"{ATTACKS[attack]} α={alpha:g} {metric}, {self.rounds} rounds{before}"


def other_rounds(results: Sequence[Result]) -> list[Table]:
    """For each data set and configuration: rules by attack, alpha and metric, each beside the published number."""
    mine = [r for r in results if r.done and of_the_paper(r) and not fits(r)]
    tables: list[Table] = []
    for dataset, config in dict.fromkeys((key_of(r, "ACC").dataset, key_of(r, "ACC").config) for r in mine):
        here = [r for r in mine if (key_of(r, "ACC").dataset, key_of(r, "ACC").config) == (dataset, config)]
        for statistic in STATISTICS:
            # a shorter run has no mean of the last 20 rounds that could be compared
            if statistic == "last" or min(r.entry.of for r in here) >= 20:
                tables.append(_table(here, dataset, config, statistic))
    return tables


def _table(results: Sequence[Result], dataset: str, config: int, statistic: str) -> Table:
    cells: dict[RoundsColumn, dict[str, list[Result]]] = {}
    for r in results:
        for metric in ("ACC", "ASR"):
            if r.get(metric, statistic) is not None:
                key = key_of(r, metric)
                trained = RoundsColumn(key.column, r.entry.of, _warm_up(r))
                cells.setdefault(trained, {}).setdefault(key.rule, []).append(r)
    names = {key_of(r, "ACC").rule for r in results}
    rules = [*(rule for rule in (*RULES, *EXTRA) if rule in names), *sorted(names - {*RULES, *EXTRA})]
    columns = sorted(cells, key=lambda c: (list(ATTACKS).index(c.column.attack), c))
    rows: list[list[Cell]] = []
    for rule in rules:
        row: list[Cell] = [rule]
        for column in columns:
            mean = mean_of([r.get(column.column.metric, statistic) for r in cells[column].get(rule, [])])
            value = published_numbers().get(Key(dataset, config, EXTRA.get(rule, rule), column.column))
            row += [None if mean is None else mean.text(), None if value is None else f"{value:.2f}"]
        rows.append(row)
    heads = [head for column in columns for head in (column.head(), f"paper, {ROUNDS[dataset]}")]
    lengths = " or ".join(str(n) for n in sorted({r.entry.of for r in results}))
    title = f"{DATASETS[dataset]}, configuration {config}, {lengths} rounds instead of {ROUNDS[dataset]}"
    return Table(
        f"other-rounds-{dataset}-{config}-{statistic}",
        f"{title}, {STATISTICS[statistic]}",
        NOTE.format(paper=ROUNDS[dataset]),
        ["rule", *heads],
        rows,
    )


def _warm_up(result: Result) -> int:
    settings: Any = json.loads(result.entry.details.get("experiment", "{}"))
    return int(settings.get("warm_up", 0))
