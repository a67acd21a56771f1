"""The six tables in HTML, Markdown and CSV, ours beside the published numbers, and the count over the 540."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping

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
    Compared,
    Key,
    PaperTable,
    count,
    published,
    rows_of,
)
from honestly.show.report.results import STATISTICS
from honestly.show.svg import scroll
from honestly.show.tables import Table
from honestly.show.text import for_html

Found = Mapping[Key, Compared]
NOTE = (
    f"= within {TOLERANCE} of the published number, ▲ better, ▼ worse (a lower attack success rate, ASR, is better), "
    "· not run. Ours is the mean over the seeds, ± their standard deviation where there are several. "
    "A row “Ours (paper)” is the published algorithm without this package's repairs; it is set beside the paper's "
    "“Ours” and not counted."
)
STYLE = """
.paper td{min-width:5.2rem;white-space:nowrap}
.paper thead th{text-align:center}.paper thead th[rowspan]{text-align:left}
.paper .q{display:block;font-size:.82em;color:var(--quiet);white-space:nowrap}
.paper .set th{text-align:left;padding-top:.8rem}
.paper td.better{background:#2f9e5833}.paper td.worse{background:#e5484d33}.paper td.reproduced{background:#3b82f61c}
.pick{margin:.6rem 0}.pick label{margin-right:1.2rem}
body:has(#s-last:checked) .s-mean_last_20,body:has(#s-mean_last_20:checked) .s-last{display:none}
.bar{display:flex;height:1.1rem;border-radius:4px;overflow:hidden;max-width:46rem;background:#8883}
.bar .reproduced{background:#3b82f6}.bar .better{background:#2f9e58}.bar .worse{background:#e5484d}
"""


def lines_of(found: Found, table: PaperTable) -> Iterator[tuple[str, str, list[Compared]]]:
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
    held = Counter(one.found.n for key, one in found.items() if key in published() and one.found is not None)
    if not held:
        return "None of them was run."
    parts = [f"{held[n]} of {n} seed{'' if n == 1 else 's'}" for n in sorted(held)]
    return f"Numbers that were run: {', '.join(parts)}."


# -- HTML -----------------------------------------------------------------------------------------------------------


def html(all_found: Mapping[str, Found]) -> str:
    """The count, and the tables, of which the reader picks the statistic."""
    parts = ["<h2 id='paper'>The paper's tables</h2>"]
    for statistic, found in all_found.items():
        total = count(found)
        bar = "".join(f"<span class='{v}' style='flex:{total[v]}'></span>" for v in VERDICTS[:3])
        rest = f"<span style='flex:{total['not run']}'></span>"
        parts.append(
            f"<p>{for_html(sentence(found, statistic))}</p><div class='bar' aria-hidden='true'>{bar}{rest}</div>"
        )
    parts.append(f"<p>{seeds(next(iter(all_found.values())))}</p>")
    parts.append(f"<details><summary>By data set and rule</summary>{counts(all_found).html()}</details>")
    apart = "".join(differences(found, statistic).html() for statistic, found in all_found.items())
    parts.append(f"<details><summary>Where ours differ</summary>{apart}</details>")
    picks = "".join(
        f"<label><input type='radio' name='s' id='s-{s}'{' checked' if i == 0 else ''}> {words}</label>"
        for i, (s, words) in enumerate(STATISTICS.items())
    )
    parts.append(
        f"<fieldset class='pick'><legend>Our numbers are the</legend>{picks}</fieldset><p class='quiet'>{NOTE}</p>"
    )
    for table in TABLES:
        parts.append(f"<h3 id='{table.name}'>Table {table.number}. {for_html(table.caption)}</h3>")
        parts += [_html_table(table, found, statistic) for statistic, found in all_found.items()]
    return "\n".join(parts)


def _html_table(table: PaperTable, found: Found, statistic: str) -> str:
    backdoor = "backdoor" in table.attacks
    widths = {a: sum(c.attack == a for c in table.columns) for a in table.attacks}
    head = "".join(f"<th colspan='{n}'>{ATTACKS[a]}</th>" for a, n in widths.items())
    second = "".join(
        f"<th colspan='{2 if backdoor and a == 'backdoor' else 1}'>α = {alpha}</th>"
        for a in table.attacks
        for alpha in ALPHAS
    )
    third = "".join(f"<th>{c.metric}</th>" for c in table.columns)
    body: list[str] = []
    before = ""
    for dataset, rule, row in lines_of(found, table):
        if dataset != before:
            body.append(f"<tr class='set'><th colspan='{len(table.columns) + 1}'>{DATASETS[dataset]}</th></tr>")
        before = dataset
        body.append(f"<tr><td>{rule}</td>{''.join(_html_cell(one) for one in row)}</tr>")
    inside = (
        f"<table class='paper'><thead><tr><th rowspan='3'>rule</th>{head}</tr><tr>{second}</tr><tr>{third}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>"
    )
    framed = scroll(inside, f"table {table.number}, {STATISTICS[statistic]}")
    return f"<div class='s-{statistic}'><p class='quiet'>Ours: {STATISTICS[statistic]}</p>{framed}</div>"


def _html_cell(one: Compared) -> str:
    if one.found is None:
        return f"<td class='none'>{MARKS['not run']}<span class='q'>paper {one.published:.2f}</span></td>"
    seeds = f"{one.found.n} seed{'s' if one.found.n > 1 else ''}"
    title = f"{one.verdict}: {one.difference:+.3f} against the paper's {one.published:.2f}; {seeds}"
    spread = "" if one.found.sd is None else f" <small>±{one.found.sd:.3f}</small>"
    apart = "" if one.verdict == "reproduced" else f" ({one.difference:+.2f})"
    return (
        f"<td class='{one.verdict}' title='{title}'>{one.found.mean:.3f}{spread}"
        f"<span class='q'>{MARKS[one.verdict]} paper {one.published:.2f}{apart}</span></td>"
    )


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
        parts += _listed(all_found, wanted, title)
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


def _listed(all_found: Mapping[str, Found], wanted: str, title: str) -> list[str]:
    """The numbers of the 540 with a verdict, the largest differences first."""
    parts: list[str] = []
    for statistic, found in all_found.items():
        chosen = [one for key, one in found.items() if key in published() and one.verdict == wanted]
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
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["dataset", "config", "attack", "alpha", "rule", "metric", "published", "statistic"]
    writer.writerow([*head, "mean", "sd", "seeds", "difference", "verdict"])
    for statistic, found in all_found.items():
        for key, one in found.items():
            c = key.column
            ours = ["", "", 0, ""]
            if one.found is not None and one.difference is not None:
                sd = "" if one.found.sd is None else f"{one.found.sd:.6f}"
                ours = [f"{one.found.mean:.6f}", sd, one.found.n, f"{one.difference:+.6f}"]
            named = [key.dataset, key.config, c.attack, c.alpha, key.rule, c.metric, one.published, statistic]
            writer.writerow([*named, *ours, one.verdict])
    return out.getvalue()
