"""Accusations by setting, in the first and second half of the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from honestly.show.report.detection import Half, Statements
from honestly.show.report.origin import READINGS, reading_of
from honestly.show.report.published import DATASETS, of_the_paper
from honestly.show.report.results import Result, is_warm_up
from honestly.show.tables import Cell, Table
from honestly.show.text import printable

#: Axes that are summed over: runs that differ only in these are one setting.
SUMMED = ("attack", "seed", "run")
NOTE = (
    "Clients per round, over all attacks and seeds, in the first and the second half of the rounds. A client that is "
    "malicious but does not attack in a round is honest there."
)


def accusations(results: Sequence[Result]) -> Table | None:
    """Honest clients that were accused and attackers that were not, of rules that infer honesty."""
    settings: dict[str, list[Statements]] = {}
    for result in results:
        statements = result.statements
        if statements is not None and statements.probability and not is_warm_up(result.cell):
            parts = [f"{k} {v}" if k not in ("rule", "dataset") else str(v) for k, v in _sort_axes(result.cell)]
            settings.setdefault(printable(", ".join(parts)), []).append(statements)
    if len(settings) < 2:
        return None
    rows: list[list[Cell]] = []
    for name, parts in settings.items():
        early, late = (_mean_rates([part.halves[i] for part in parts]) for i in (0, 1))
        rows.append([name, early[0], late[0], early[1], late[1], sum(part.rounds for part in parts)])
    heads = ["falsely accused, early", "late", "missed, early", "late", "rounds"]
    return Table("accusations", "Accusations by setting", NOTE, ["setting", *heads], rows)


#: Honest clients accused per round that are few enough.
TARGET = 0.1


def by_form(results: Sequence[Result]) -> Table | None:
    """Honest clients that each form of "Ours" accused in the paper's cells, by data set, configuration and half."""
    halves: dict[tuple[str, str, str, str], dict[str, list[Half]]] = {}
    for r in results:
        statements = r.statements
        if not r.done or statements is None or not statements.probability or not of_the_paper(r):
            continue
        for half, part in zip(("early", "late"), statements.halves, strict=True):
            key = (str(r.cell["dataset"]), str(r.cell["config"]), reading_of(r.entry), half)
            halves.setdefault(key, {}).setdefault(str(r.cell["rule"]), []).append(part)
    forms = sorted({form for by in halves.values() for form in by}, key=lambda form: (form != "Ours", form))
    if not halves:
        return None
    rows: list[list[Cell]] = []
    for dataset, config, reading, half in sorted(halves, key=_in_order):
        by = halves[dataset, config, reading, half]
        row: list[Cell] = [DATASETS[dataset], config, READINGS[reading], half]
        for form in forms:
            row += [_mean_rates(by[form])[0], sum(h.rounds for h in by[form])] if form in by else [None, None]
        rows.append(row)
    numbers = [(i, 4 + 2 * j, row[4 + 2 * j]) for i, row in enumerate(rows) for j in range(len(forms))]
    above = frozenset((i, j) for i, j, value in numbers if isinstance(value, float) and value > TARGET)
    return Table(
        "accusations-by-form", "Honest clients accused per round",
        f"Over all attacks, α and seeds that were run, in the first and the second half of the rounds. Bold: above "
        f"{TARGET}. The rows of one form may rest on other runs than those of another: see the numbers of rounds.",
        ["data set", "configuration", "reading", "half", *(head for form in forms for head in (form, "rounds"))],
        rows, above,
    )  # fmt: skip


def _in_order(key: tuple[str, str, str, str]) -> tuple[int, str, int, str]:
    dataset, config, reading, half = key
    return list(DATASETS).index(dataset), config, list(READINGS).index(reading), half


def _sort_axes(cell: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The rule first, then the other axes in their order."""
    pairs = [(axis, value) for axis, value in cell.items() if axis not in SUMMED]
    return sorted(pairs, key=lambda pair: pair[0] != "rule")


def _mean_rates(halves: Sequence[Half]) -> tuple[float | None, float | None]:
    rounds = sum(half.rounds for half in halves)
    if not rounds:
        return None, None
    return sum(half.false for half in halves) / rounds, sum(half.missed for half in halves) / rounds
