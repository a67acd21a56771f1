"""Tables for any study: rules by the other axes, the worst case of each rule, detection, and what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from honestly.show.chart import Heatmap
from honestly.show.report.detection import Quality, quality
from honestly.show.report.results import STATISTICS, Result, SeedMean, axes_of, is_warm_up, mean_of, usual_statistic
from honestly.show.report.sources import ReportedStudy
from honestly.show.tables import Cell, Table, lowest
from honestly.show.text import printable

RULE, ATTACK, SHARE = "rule", "attack", "malicious"
MOST_COLUMNS = 12
#: Columns of the map of accuracies.
MOST_SETTINGS = 60
LOWER_IS_BETTER = {"ACC": False, "ASR": True}
METRIC_WORDS = {"ACC": "test accuracy", "ASR": "attack success rate"}


def tables(study: str, results: Sequence[Result]) -> list[Table]:
    """Rules by the other axes: one table for each metric, statistic, and value of the axes that are too many."""
    chosen = [r for r in results if not is_warm_up(r.cell)]
    axes = axes_of(r.cell for r in chosen)
    if not axes:
        return []
    row = RULE if RULE in axes else next(iter(axes))
    others = {axis: values for axis, values in axes.items() if axis != row and len(values) > 1}
    across: list[str] = []
    for axis in sorted(others, key=lambda a: (a != SHARE, a != ATTACK, list(others).index(a))):
        if len(others[axis]) * _product(others[a] for a in across) <= MOST_COLUMNS:
            across.append(axis)
    apart = [axis for axis in others if axis not in across]
    tables: list[Table] = []
    for metric, (statistic, words) in itertools.product(METRIC_WORDS, STATISTICS.items()):
        for values in itertools.product(*(others[axis] for axis in apart)):
            where = dict(zip(apart, values, strict=True))
            here = [r for r in chosen if all(r.cell.get(a) == v for a, v in where.items())]
            table = _table(here, metric, statistic, row, {a: others[a] for a in across}, axes[row])
            if table is not None:
                fixed, columns, rows, best = table
                title = ", ".join(
                    [study, *(_short(a, v) for a, v in (where | fixed).items()), METRIC_WORDS[metric], words]
                )
                note = "Mean over seeds, ± standard deviation where there are several. Bold: the best of a column."
                tables.append(Table(f"{metric}-{statistic}", printable(title), note, columns, rows, best))
    return tables


def _product(lists: Iterator[Sequence[Any]]) -> int:
    size = 1
    for values in lists:
        size *= len(values)
    return size


def _table(
    results: Sequence[Result], metric: str, statistic: str, row: str, across: Mapping[str, Sequence[Any]],
    names: Sequence[Any],
) -> tuple[dict[str, Any], list[str], list[list[Cell]], frozenset[tuple[int, int]]] | None:  # fmt: skip
    """What all columns have in common, the heads, the rows and the best cells; None if there is no number."""
    columns = list(itertools.product(*across.values()))
    means: list[list[SeedMean | None]] = []
    for name in names:
        by_column: dict[tuple[Any, ...], list[float | None]] = {column: [] for column in columns}
        for r in results:
            if r.cell.get(row) == name:
                by_column.setdefault(tuple(r.cell.get(a) for a in across), []).append(r.get(metric, statistic))
        means.append([mean_of(by_column[column]) for column in columns])
    filled = [j for j in range(len(columns)) if any(line[j] is not None for line in means)]
    if not filled:
        return None
    sign = 1.0 if LOWER_IS_BETTER[metric] else -1.0
    best = lowest([[None, *(None if line[j] is None else sign * line[j].mean for j in filled)] for line in means],  # type: ignore[union-attr]
                  range(1, len(filled) + 1))  # fmt: skip
    rows: list[list[Cell]] = [
        [printable(name), *(None if line[j] is None else line[j].text() for j in filled)]  # type: ignore[union-attr]
        for name, line in zip(names, means, strict=True)
    ]
    used = {axis: {columns[j][i] for j in filled} for i, axis in enumerate(across)}
    fixed = {axis: next(iter(values)) for axis, values in used.items() if len(values) == 1}
    parts = [[_short(a, v) for a, v in zip(across, columns[j], strict=True) if a not in fixed] for j in filled]
    heads = [printable(", ".join(part) or METRIC_WORDS[metric]) for part in parts]
    return fixed, [row, *heads], rows, best if len(names) > 1 else frozenset()


def accuracies(results: Sequence[Result]) -> Heatmap | None:
    """Rules by settings, the accuracy in the last round; None if there is one rule, one setting or too many."""
    heatmap = accuracy_map([(r.cell, r.get("ACC", "last")) for r in results if r.done])
    few = len(heatmap.rows) < 2 or not 2 <= len(heatmap.columns) <= MOST_SETTINGS
    return None if few else heatmap


def accuracy_map(results: Sequence[tuple[Mapping[str, Any], float | None]]) -> Heatmap:
    """Rules by settings, the mean accuracy over seeds, from the cell and the accuracy of each run."""
    runs = [(cell, value) for cell, value in results if RULE in cell and not is_warm_up(cell)]
    axes = axes_of(cell for cell, _ in runs)
    rules = axes.pop(RULE, [])
    varying = [axis for axis, values in axes.items() if len(values) > 1]
    cells: dict[tuple[Any, Any], list[float | None]] = {}
    for cell, value in runs:
        cells.setdefault((cell[RULE], tuple(cell.get(axis) for axis in varying)), []).append(value)
    settings = list(dict.fromkeys(setting for _, setting in cells))
    means = [[mean_of(cells.get((rule, setting), [])) for setting in settings] for rule in rules]

    def word(i: int, j: int) -> str:
        mean = means[i][j]
        return "not run" if mean is None else f"accuracy {mean.text()}"

    values = np.array([[np.nan if m is None else m.mean for m in row] for row in means]).reshape(
        len(rules), len(settings)
    )
    names = [printable(", ".join(_short(a, v) for a, v in zip(varying, setting, strict=True))) for setting in settings]
    return Heatmap("Rules by settings", "setting", "rule", [printable(r) for r in rules], names, values, word)


def ranking(results: Sequence[Result]) -> list[Table]:
    """Rules by their worst case over attacks and the other settings, for each data set; needs at least two rules."""
    ended = [r for r in results if r.done and RULE in r.cell and not is_warm_up(r.cell)]
    statistic = usual_statistic(ended)
    tables: list[Table] = []
    for dataset in dict.fromkeys(r.cell.get("dataset") for r in ended):
        table = _ranking_table([r for r in ended if r.cell.get("dataset") == dataset], dataset, statistic)
        if table is not None:
            tables.append(table)
    return tables


def _ranking_table(results: Sequence[Result], dataset: Any, statistic: str) -> Table | None:
    settings: dict[Any, dict[str, list[Result]]] = {}
    for r in results:
        setting = tuple((a, v) for a, v in r.cell.items() if a not in (RULE, "seed", "dataset"))
        settings.setdefault(setting, {}).setdefault(str(r.cell[RULE]), []).append(r)
    rules = list(dict.fromkeys(str(r.cell[RULE]) for r in results))
    # a rule is judged by what all rules went through: who was spared the hardest attack must not win by that
    common = {s: by for s, by in settings.items() if set(by) == set(rules)}
    if len(rules) < 2 or len(common) < 2:
        return None
    scored: list[tuple[float, list[Cell]]] = []
    for rule in rules:
        worst = {metric: _worst(common, rule, metric, statistic) for metric in METRIC_WORDS}
        accuracy, success = worst["ACC"], worst["ASR"]
        if accuracy is None:
            continue
        all_accuracies = mean_of([r.get("ACC", statistic) for by in common.values() for r in by[rule]])
        score = min(accuracy[0], 1.0 if success is None else 1.0 - success[0])
        scored.append((score, [
            rule, score, accuracy[0], accuracy[1], None if success is None else success[0],
            None if success is None else success[1], None if all_accuracies is None else all_accuracies.mean,
        ]))  # fmt: skip
    scored.sort(key=lambda one: -one[0])
    title = "Worst case of each rule" if dataset is None else f"Worst case of each rule, {dataset}"
    note = (
        f"Over the {len(common)} settings that all rules have finished ({STATISTICS[statistic]}, mean over seeds). "
        "The worst case is the smaller of the lowest accuracy and 1 - the highest attack success rate."
    )
    columns = ["rule", "worst case", "lowest accuracy", "under", "highest ASR", "under", "mean accuracy"]
    return Table("ranking", printable(title), note, columns, [row for _, row in scored])


def _worst(
    settings: Mapping[Any, Mapping[str, Sequence[Result]]], rule: str, metric: str, statistic: str
) -> tuple[float, str] | None:
    """The worst mean over seeds, and the setting in which it was."""
    sign = -1.0 if LOWER_IS_BETTER[metric] else 1.0
    scores: list[tuple[float, str]] = []
    for setting, by in settings.items():
        mean = mean_of([r.get(metric, statistic) for r in by[rule]])
        if mean is not None:
            scores.append((mean.mean, printable(", ".join(_short(a, v) for a, v in setting) or "-")))
    return min(scores, key=lambda one: sign * one[0]) if scores else None


def _short(axis: str, value: Any) -> str:
    return str(value) if axis in (ATTACK, "dataset") else f"{axis} {value}"


def detection(results: Sequence[Result]) -> tuple[dict[str, Quality], list[Table]]:
    """Detection quality of every rule that says which clients it believes, over all runs and by attack."""
    judged = [r for r in results if r.statements is not None and not is_warm_up(r.cell)]
    name: Callable[[Result], str] = lambda r: str(r.cell.get(RULE) or r.entry.rule or "rule")  # noqa: E731
    rules = list(dict.fromkeys(name(r) for r in judged))
    attack: Callable[[Result], str] = lambda r: str(r.cell.get(ATTACK) or r.entry.attack)  # noqa: E731
    attacks = list(dict.fromkeys(attack(r) for r in judged))
    overall: dict[str, Quality] = {}
    areas: list[list[Cell]] = []
    for rule in rules:
        mine = [r for r in judged if name(r) == rule]
        scores = quality([r.statements for r in mine if r.statements is not None])
        if scores is None:
            continue
        overall[rule] = scores
        by = [quality([r.statements for r in mine if r.statements is not None and attack(r) == a]) for a in attacks]
        areas.append([printable(rule), *(None if q is None else q.auc for q in by)])
    if not overall:
        return {}, []
    rows: list[list[Cell]] = [
        [printable(rule), q.auc, q.brier, q.calibration, q.false, q.missed, q.statements] for rule, q in overall.items()
    ]
    columns = [
        "rule",
        "AUC",
        "Brier",
        "calibration error",
        "falsely accused per round",
        "missed per round",
        "statements",
    ]
    note = (
        "Every client in every round is one statement: honesty where the rule infers it, else its weight relative to "
        "the largest. AUC: the chance that an honest client has a higher score than an attacker (0.5 is a coin). Brier "
        "score and calibration error judge the honesty as a probability: 0 is perfect."
    )
    tables = [Table("detection", "Detection of attackers", note, columns, rows)]
    if len(attacks) > 1:
        note = "Area under the ROC curve, over all rounds of all runs under the attack."
        tables.append(Table("auc", "AUC by attack", note, ["rule", *map(printable, attacks)], areas))
    return overall, tables


def missing(study: ReportedStudy) -> list[str]:
    """What a study lacks, in sentences."""
    total = len(study.entries)
    if not total:
        return ["there are no runs yet", *study.notes]
    if total == 1 and not study.entries[0].of:  # a federation goes on as long as it likes
        return [f"{study.entries[0].rounds} rounds", *study.notes]
    words = {
        "pending": "not started", "running": "still running", "failed": "failed", "stopped": "stopped before the end",
    }  # fmt: skip
    counts = [f"{study.count(status)} {text}" for status, text in words.items() if study.count(status)]
    sentences = [f"{study.count('done')} of {total} runs are finished" + (": " + ", ".join(counts) if counts else "")]
    return [*sentences, *study.notes]
