"""The six tables in HTML, Markdown and CSV, ours beside the published numbers, and the count over the 540."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from honestly.runs.text import csv_text
from honestly.show.html import part
from honestly.show.report import causes as why
from honestly.show.report.causes import Cause
from honestly.show.report.differences import differences
from honestly.show.report.origin import READINGS, SIGNS
from honestly.show.report.published import (
    ALPHAS,
    ATTACKS,
    DATASETS,
    EXTRA,
    MARKS,
    TABLES,
    TOLERANCE,
    VERDICT_WORDS,
    VERDICTS,
    Comparison,
    Key,
    Measurement,
    PaperTable,
    count,
    published_numbers,
    rows_of,
)
from honestly.show.report.results import STATISTICS
from honestly.show.tables import Table

Found = Mapping[Key, Comparison]
Why = Mapping[Key, Cause]
NOTE = (
    f"= within {TOLERANCE} of the published number, ▲ better, ▼ worse (a lower attack success rate, ASR, is better), "
    "½ run for half of the paper's rounds, · not run. ᶜ was run by the authors' code where that differs from the "
    "paper's text, ᵉ as well but that all clients weigh the same, ᵗ by the text; where several were run, the first two "
    "are shown, and the first counts. "
    "Ours is the mean over the seeds, ± their standard deviation where there are several. "
    "Rows that are not the paper's are set beside its “Ours” and not counted: “Ours (paper)” is the published "
    "algorithm without this package's repairs, “Ours (version 0.1)” the default rule of that version."
)


def lines_of(comparisons: Found, table: PaperTable) -> Iterator[tuple[str, str, list[Comparison]]]:
    """(data set, rule, the row's numbers) in the paper's order."""
    for dataset in DATASETS:
        for rule in rows_of(comparisons):
            yield dataset, rule, [comparisons[Key(dataset, table.config, rule, column)] for column in table.columns]


def counts(all_found: Mapping[str, Found]) -> Table:
    """How many of the 540 numbers are reproduced, better, worse or not run, by statistic and by data set."""
    rows: list[list[str | int]] = []
    for statistic, comparisons in all_found.items():
        total = count(comparisons)
        rows.append([f"all 540, {STATISTICS[statistic]}", *(total[v] for v in VERDICTS)])
        for dataset, title in DATASETS.items():
            part = count(comparisons, dataset=dataset)
            rows.append([f"{title}, {STATISTICS[statistic]}", *(part[v] for v in VERDICTS)])
    for statistic, comparisons in all_found.items():
        for rule in rows_of(comparisons):
            if rule not in EXTRA:
                part = count(comparisons, rule=rule)
                rows.append([f"{rule}, {STATISTICS[statistic]}", *(part[v] for v in VERDICTS)])
    return Table(
        "counts",
        "The 540 published numbers",
        f"Reproduced means within {TOLERANCE}.",
        ["numbers", *(VERDICT_WORDS.get(v, v) for v in VERDICTS)],
        rows,
    )


def sentence(comparisons: Found, statistic: str) -> str:
    """The count in words."""
    total = count(comparisons)
    words = {"reproduced": f"reproduced (within {TOLERANCE})", "half": "run for half of the rounds"}
    parts = ", ".join(f"{total[v]} {words.get(v, v)}" for v in VERDICTS if v != "half" or total[v])
    return f"Of the 540 published numbers, by the {STATISTICS[statistic]}: {parts}."


def seeds(comparisons: Found) -> str:
    """How many of the numbers rest on how many seeds, and how much these differ."""
    here = [one for key, one in comparisons.items() if key in published_numbers() and one.seeds is not None]
    counts = Counter(one.seeds.n for one in here if one.seeds is not None)
    if not counts:
        return "None of them was run."
    parts = [f"{counts[n]} of {n} seed{'' if n == 1 else 's'}" for n in sorted(counts)]
    spread = [(one.seeds.sd, one) for one in here if one.seeds is not None and one.seeds.sd is not None]
    sentence = f"Numbers that were run: {', '.join(parts)}."
    if spread:
        sd, widest = max(spread, key=lambda pair: pair[0])
        sentence += (
            f" Where there are several seeds, the standard deviation is at most {sd:.3f} ({_cell_label(widest)})."
        )
    return sentence


def readings(comparisons: Found) -> str:
    """How many numbers were run by which reading of the paper."""
    here = [one for key, one in comparisons.items() if key in published_numbers() and one.counted is not None]
    counted = Counter(one.counted.reading for one in here if one.counted is not None)
    both = sum(one.other_reading is not None for one in here)
    parts = [f"{counted[reading]} by {words}" for reading, words in READINGS.items()]
    numbers = ", ".join(parts)
    return f"Where the paper's text and the authors' code differ, numbers were run: {numbers}; {both} by more than one."


def commits(comparisons: Found) -> str:
    """By which commits the numbers of "Ours" were made, for the rule changes."""
    by_commit: dict[str, Counter[str]] = {}
    for key, one in comparisons.items():
        if one.counted is not None and key.rule.startswith("Ours") and one.counted.commits:
            by_commit.setdefault(key.rule, Counter())[one.counted.commits] += 1
    if not by_commit:
        return ""
    rules = [f"{rule}: {', '.join(f'{by[c]} by {c}' for c in sorted(by))}" for rule, by in by_commit.items()]
    return f"Commits by which they were made (a plus sign: with changes): {'; '.join(rules)}."


def facts(comparisons: Found) -> list[str]:
    """What is to be said of all numbers, in sentences."""
    return [text for text in (readings(comparisons), seeds(comparisons), commits(comparisons)) if text]


def _cell_label(one: Comparison) -> str:
    k, c = one.key, one.key.column
    return (
        f"{k.rule}, {DATASETS[k.dataset]}, configuration {k.config}, {ATTACKS[c.attack]}, α = {c.alpha:g}, {c.metric}"
    )


# -- HTML -----------------------------------------------------------------------------------------------------------


def html(all_found: Mapping[str, Found], all_causes: Mapping[str, Why], accusations: Table | None) -> Markup:
    """The count, and the tables, of which the reader picks the statistic."""
    return part(
        "paper", found=all_found, tables=TABLES, statistics=STATISTICS, note=NOTE, count=count, sentence=sentence,
        facts=facts(next(iter(all_found.values()))), counts=counts(all_found),
        differences=[
            table
            for statistic, comparisons in all_found.items()
            for table in (differences(comparisons, statistic), *_causes(all_causes, statistic))
        ],
        accusations=accusations, head=_head, rows=_rows, verdicts=VERDICTS,
    )  # fmt: skip


def _causes(all_causes: Mapping[str, Why], statistic: str) -> list[Table]:
    causes = all_causes.get(statistic)
    return [why.summary(causes, STATISTICS[statistic])] if causes else []


def _head(table: PaperTable) -> list[list[tuple[str, int]]]:
    """The three lines of a table's head: texts and how many columns each covers."""
    alphas = [(f"α = {alpha}", sum(c.attack == a and c.alpha == alpha for c in table.columns))
              for a in table.attacks for alpha in ALPHAS]  # fmt: skip
    attacks = [(ATTACKS[a], sum(c.attack == a for c in table.columns)) for a in table.attacks]
    return [attacks, alphas, [(c.metric, 1) for c in table.columns]]


def _rows(table: PaperTable, comparisons: Found) -> Iterator[tuple[str, str, list[dict[str, str]]]]:
    """(data set where it begins, rule, cells)."""
    before = ""
    for dataset, rule, row in lines_of(comparisons, table):
        yield DATASETS[dataset] if dataset != before else "", rule, [_cell(one) for one in row]
        before = dataset


def _cell(one: Comparison) -> dict[str, str]:
    paper = f"{MARKS[one.verdict]} paper {one.published:.2f}"
    if one.counted is None:
        return {"kind": "", "ours": "", "paper": paper, "title": "not run"}
    title = "; ".join(_words(m, one.published) for m in (one.counted, one.other_reading) if m is not None)
    apart = "" if one.verdict == "reproduced" else f" ({one.difference:+.2f})"
    return {"kind": one.verdict, "ours": _numbers(one), "paper": paper + apart, "title": title}


def _words(m: Measurement, value: float) -> str:
    """Where a number comes from."""
    seeds = f"{m.seeds.n} seed{'s' if m.seeds.n > 1 else ''}"
    commit = f", commit {m.commits}" if m.commits else ""
    return (
        f"by {READINGS[m.reading]}, {m.rounds} rounds: {m.seeds.mean - value:+.3f} against the paper's {value:.2f}; "
        f"{seeds}{commit}"
    )


def _numbers(one: Comparison) -> str:
    """The number that counts with the sign of its reading, and that of the other reading."""
    measurements = [m for m in (one.counted, one.other_reading) if m is not None]
    return " ".join(f"{m.seeds.text()}{SIGNS[m.reading]}" for m in measurements)


# -- Markdown and CSV -----------------------------------------------------------------------------------------------


def markdown(all_found: Mapping[str, Found], all_causes: Mapping[str, Why], accusations: Table | None = None) -> str:
    """The counts in words, what differs and why, and the tables of both statistics."""
    parts = ["## The paper's tables", "", *(f"- {sentence(f, s)}" for s, f in all_found.items())]
    parts += [*(f"- {fact}" for fact in facts(next(iter(all_found.values())))), ""]
    parts += [f"{NOTE} Every number is in `cells.csv`.", "", counts(all_found).markdown()]
    for statistic, comparisons in all_found.items():
        parts.append(differences(comparisons, statistic).markdown())
        parts += [table.markdown() for table in _causes(all_causes, statistic)]
    parts += [] if accusations is None else [accusations.markdown()]
    for statistic, comparisons in all_found.items():
        parts += [f"### Our numbers: {STATISTICS[statistic]}", ""]
        for table in TABLES:
            parts += [f"**Table {table.number}.** {table.caption}", "", *_markdown_table(table, comparisons), ""]
    for wanted, title in (("worse", "Worse than published"), ("better", "Better than published")):
        parts += _list_numbers(all_found, all_causes, wanted, title)
    return "\n".join(parts)


def _markdown_table(table: PaperTable, comparisons: Found) -> Iterator[str]:
    names = [f"{ATTACKS[c.attack]} α={c.alpha:g} {c.metric}" for c in table.columns]
    yield "| data set | rule | " + " | ".join(names) + " |"
    yield "|---|---|" + "---:|" * len(names)
    lines = list(lines_of(comparisons, table))
    run = {dataset for dataset, _, row in lines if any(one.seeds is not None for one in row)}
    for dataset, rule, row in lines:
        if dataset not in run:
            continue
        cells = [
            f"{MARKS['not run']} ({one.published:.2f})"
            if one.seeds is None
            else f"{_numbers(one)} ({one.published:.2f}) {MARKS[one.verdict]}"
            for one in row
        ]
        yield f"| {DATASETS[dataset]} | {rule} | " + " | ".join(cells) + " |"
    for dataset, title in DATASETS.items():
        if dataset not in run:
            yield f"| {title} | not run |" + " |" * len(names)


def _list_numbers(all_found: Mapping[str, Found], all_causes: Mapping[str, Why], wanted: str, title: str) -> list[str]:
    """The numbers of the 540 with a verdict, the largest differences first, each with its cause."""
    parts: list[str] = []
    for statistic, comparisons in all_found.items():
        chosen = [one for key, one in comparisons.items() if key in published_numbers() and one.verdict == wanted]
        if not chosen:
            continue
        chosen.sort(key=lambda one: -abs(one.difference or 0.0))
        parts += [f"<details><summary>{title}, {STATISTICS[statistic]}: {len(chosen)}</summary>", ""]
        parts += ["| data set | configuration | attack | α | rule | | published | ours | difference | cause |"]
        parts += ["|---|---:|---|---:|---|---|---:|---:|---:|---|"]
        for one in chosen:
            k, c = one.key, one.key.column
            cause = all_causes.get(statistic, {}).get(k)
            parts.append(
                f"| {DATASETS[k.dataset]} | {k.config} | {ATTACKS[c.attack]} | {c.alpha:g} | {k.rule} | {c.metric} | "
                f"{one.published:.2f} | {_numbers(one)} | {one.difference:+.3f} | {_sentence(cause)} |"
            )
        parts += ["", "</details>", ""]
    return parts


def _sentence(cause: Cause | None) -> str:
    if cause is None:
        return ""
    return cause.sentence if cause.kind == "unexplained" else f"{cause.kind}: {cause.sentence}"


def cells_csv(all_found: Mapping[str, Found], all_causes: Mapping[str, Why]) -> str:
    """One row for each of the 540 numbers (and for rules set beside "Ours") and statistic, and for each reading."""
    columns = ["dataset", "config", "attack", "alpha", "rule", "metric", "published", "statistic"]
    columns += ["mean", "sd", "seeds", "difference", "verdict", "reading", "rounds", "commits", "counted", "cause"]
    rows: list[list[Any]] = []
    for statistic, comparisons in all_found.items():
        for key, one in comparisons.items():
            c = key.column
            cell = [key.dataset, key.config, c.attack, c.alpha, key.rule, c.metric, one.published, statistic]
            if one.counted is None:
                rows.append([*cell, "", "", 0, "", one.verdict, "", 0, "", "yes", ""])
            cause = _sentence(all_causes.get(statistic, {}).get(key))
            for m in one.measured:
                sd = "" if m.seeds.sd is None else f"{m.seeds.sd:.6f}"
                ours = [f"{m.seeds.mean:.6f}", sd, m.seeds.n, f"{m.seeds.mean - one.published:+.6f}"]
                verdict = replace(one, measured=(m,)).verdict
                counts = m is one.counted
                origin = [m.reading, m.rounds, m.commits, "yes" if counts else "no", cause if counts else ""]
                rows.append([*cell, *ours, verdict, *origin])
    return csv_text(columns, rows)
