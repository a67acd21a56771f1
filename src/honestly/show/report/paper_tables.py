"""The six tables in HTML, Markdown and CSV, ours beside the published numbers, and the count over the 540."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from honestly.runs.text import csv_text
from honestly.show.html import part
from honestly.show.report.differences import differences
from honestly.show.report.published import (
    ALPHAS,
    ATTACKS,
    DATASETS,
    EXTRA,
    MARKS,
    TABLES,
    TOLERANCE,
    VERDICTS,
    Comparison,
    Key,
    PaperTable,
    count,
    published_numbers,
    rows_of,
)
from honestly.show.report.results import STATISTICS
from honestly.show.tables import Table

Found = Mapping[Key, Comparison]
NOTE = (
    f"= within {TOLERANCE} of the published number, ▲ better, ▼ worse (a lower attack success rate, ASR, is better), "
    "· not run. Ours is the mean over the seeds, ± their standard deviation where there are several. "
    "A row “Ours (paper)” is the published algorithm without this package's repairs; it is set beside the paper's "
    "“Ours” and not counted."
)


def lines_of(found: Found, table: PaperTable) -> Iterator[tuple[str, str, list[Comparison]]]:
    """(data set, rule, the row's numbers) in the paper's order."""
    for dataset in DATASETS:
        for rule in rows_of(found):
            yield dataset, rule, [found[Key(dataset, table.config, rule, column)] for column in table.columns]


def counts(all_found: Mapping[str, Found]) -> Table:
    """How many of the 540 numbers are reproduced, better, worse or not run, by statistic and by data set."""
    rows: list[list[str | int]] = []
    for statistic, found in all_found.items():
        total = count(found)
        rows.append([f"all 540, {STATISTICS[statistic]}", *(total[v] for v in VERDICTS)])
        for dataset, shown in DATASETS.items():
            part = count(found, dataset=dataset)
            rows.append([f"{shown}, {STATISTICS[statistic]}", *(part[v] for v in VERDICTS)])
    for statistic, found in all_found.items():
        for rule in rows_of(found):
            if rule not in EXTRA:
                part = count(found, rule=rule)
                rows.append([f"{rule}, {STATISTICS[statistic]}", *(part[v] for v in VERDICTS)])
    return Table(
        "counts", "The 540 published numbers", f"Reproduced means within {TOLERANCE}.", ["numbers", *VERDICTS], rows
    )


def sentence(found: Found, statistic: str) -> str:
    """The count in words."""
    total = count(found)
    parts = ", ".join(f"{total[v]} {v if v != 'reproduced' else f'reproduced (within {TOLERANCE})'}" for v in VERDICTS)
    return f"Of the 540 published numbers, by the {STATISTICS[statistic]}: {parts}."


def seeds(found: Found) -> str:
    """How many of the numbers rest on how many seeds."""
    held = Counter(one.found.n for key, one in found.items() if key in published_numbers() and one.found is not None)
    if not held:
        return "None of them was run."
    parts = [f"{held[n]} of {n} seed{'' if n == 1 else 's'}" for n in sorted(held)]
    return f"Numbers that were run: {', '.join(parts)}."


# -- HTML -----------------------------------------------------------------------------------------------------------


def html(all_found: Mapping[str, Found]) -> Markup:
    """The count, and the tables, of which the reader picks the statistic."""
    return part(
        "paper", found=all_found, tables=TABLES, statistics=STATISTICS, note=NOTE, count=count, sentence=sentence,
        seeds=seeds(next(iter(all_found.values()))), counts=counts(all_found),
        differences=[differences(found, statistic) for statistic, found in all_found.items()],
        head=_head, rows=_rows, verdicts=VERDICTS,
    )  # fmt: skip


def _head(table: PaperTable) -> list[list[tuple[str, int]]]:
    """The three lines of a table's head: texts and how many columns each covers."""
    alphas = [(f"α = {alpha}", sum(c.attack == a and c.alpha == alpha for c in table.columns))
              for a in table.attacks for alpha in ALPHAS]  # fmt: skip
    attacks = [(ATTACKS[a], sum(c.attack == a for c in table.columns)) for a in table.attacks]
    return [attacks, alphas, [(c.metric, 1) for c in table.columns]]


def _rows(table: PaperTable, found: Found) -> Iterator[tuple[str, str, list[dict[str, str]]]]:
    """(data set where it begins, rule, cells)."""
    before = ""
    for dataset, rule, row in lines_of(found, table):
        yield DATASETS[dataset] if dataset != before else "", rule, [_cell(one) for one in row]
        before = dataset


def _cell(one: Comparison) -> dict[str, str]:
    paper = f"{MARKS[one.verdict]} paper {one.published:.2f}"
    if one.found is None:
        return {"kind": "", "ours": "", "paper": paper, "title": "not run"}
    seeds = f"{one.found.n} seed{'s' if one.found.n > 1 else ''}"
    title = f"{one.verdict}: {one.difference:+.3f} against the paper's {one.published:.2f}; {seeds}"
    apart = "" if one.verdict == "reproduced" else f" ({one.difference:+.2f})"
    return {"kind": one.verdict, "ours": one.found.text(), "paper": paper + apart, "title": title}


# -- Markdown and CSV -----------------------------------------------------------------------------------------------


def markdown(all_found: Mapping[str, Found]) -> str:
    """The counts in words, what differs, and the tables of both statistics."""
    parts = ["## The paper's tables", "", *(f"- {sentence(f, s)}" for s, f in all_found.items())]
    parts += [f"- {seeds(next(iter(all_found.values())))}", "", f"{NOTE} Every number is in `cells.csv`.", ""]
    parts.append(counts(all_found).markdown())
    parts += [differences(found, statistic).markdown() for statistic, found in all_found.items()]
    for statistic, found in all_found.items():
        parts += [f"### Our numbers: {STATISTICS[statistic]}", ""]
        for table in TABLES:
            parts += [f"**Table {table.number}.** {table.caption}", "", *_markdown_table(table, found), ""]
    for wanted, title in (("worse", "Worse than published"), ("better", "Better than published")):
        parts += _list_numbers(all_found, wanted, title)
    return "\n".join(parts)


def _markdown_table(table: PaperTable, found: Found) -> Iterator[str]:
    names = [f"{ATTACKS[c.attack]} α={c.alpha:g} {c.metric}" for c in table.columns]
    yield "| data set | rule | " + " | ".join(names) + " |"
    yield "|---|---|" + "---:|" * len(names)
    lines = list(lines_of(found, table))
    run = {dataset for dataset, _, row in lines if any(one.found is not None for one in row)}
    for dataset, rule, row in lines:
        if dataset not in run:
            continue
        cells = [
            f"{MARKS['not run']} ({one.published:.2f})"
            if one.found is None
            else f"{one.found.text()} ({one.published:.2f}) {MARKS[one.verdict]}"
            for one in row
        ]
        yield f"| {DATASETS[dataset]} | {rule} | " + " | ".join(cells) + " |"
    for dataset, shown in DATASETS.items():
        if dataset not in run:
            yield f"| {shown} | not run |" + " |" * len(names)


def _list_numbers(all_found: Mapping[str, Found], wanted: str, title: str) -> list[str]:
    """The numbers of the 540 with a verdict, the largest differences first."""
    parts: list[str] = []
    for statistic, found in all_found.items():
        chosen = [one for key, one in found.items() if key in published_numbers() and one.verdict == wanted]
        if not chosen:
            continue
        chosen.sort(key=lambda one: -abs(one.difference or 0.0))
        parts += [f"<details><summary>{title}, {STATISTICS[statistic]}: {len(chosen)}</summary>", ""]
        parts += ["| data set | configuration | attack | α | rule | | published | ours | difference |"]
        parts += ["|---|---:|---|---:|---|---|---:|---:|---:|"]
        for one in chosen:
            k, c = one.key, one.key.column
            assert one.found is not None
            parts.append(
                f"| {DATASETS[k.dataset]} | {k.config} | {ATTACKS[c.attack]} | {c.alpha:g} | {k.rule} | {c.metric} | "
                f"{one.published:.2f} | {one.found.text()} | {one.difference:+.3f} |"
            )
        parts += ["", "</details>", ""]
    return parts


def cells_csv(all_found: Mapping[str, Found]) -> str:
    """One row for each of the 540 numbers (and for rules set beside "Ours") and statistic."""
    columns = ["dataset", "config", "attack", "alpha", "rule", "metric", "published", "statistic"]
    columns += ["mean", "sd", "seeds", "difference", "verdict"]
    rows: list[list[Any]] = []
    for statistic, found in all_found.items():
        for key, one in found.items():
            c = key.column
            ours = ["", "", 0, ""]
            if one.found is not None and one.difference is not None:
                sd = "" if one.found.sd is None else f"{one.found.sd:.6f}"
                ours = [f"{one.found.mean:.6f}", sd, one.found.n, f"{one.difference:+.6f}"]
            cell = [key.dataset, key.config, c.attack, c.alpha, key.rule, c.metric, one.published, statistic]
            rows.append([*cell, *ours, one.verdict])
    return csv_text(columns, rows)
