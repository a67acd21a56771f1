"""The parts of a report, each in HTML, Markdown and LaTeX, with the charts that it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from honestly.show.chart import Chart
from honestly.show.html import join, part
from honestly.show.report import by_round as rounds
from honestly.show.report import causes as why
from honestly.show.report import generic, paper_latex, paper_tables
from honestly.show.report.accusations import accusations, by_form
from honestly.show.report.by_round import Series
from honestly.show.report.curves import ablation
from honestly.show.report.detection import reliability_chart, roc_chart
from honestly.show.report.other_rounds import other_rounds
from honestly.show.report.published import compare, fits, half, of_the_paper
from honestly.show.report.results import STATISTICS, Result, default_first, usual_statistic
from honestly.show.report.sources import ReportedRun, ReportedStudy
from honestly.show.tables import Table
from honestly.show.text import for_markdown, printable

#: A section with more charts is folded.
MOST_OPEN = 6


@dataclass(frozen=True)
class Section:
    """A part with a title; its charts are in the HTML already, and become the file `picture` beside the Markdown.

    A `folded` section is closed until the reader opens it.
    """

    title: str
    html: Markup
    markdown: str
    latex: str = ""
    picture: str = ""
    charts: Sequence[Chart] = ()
    folded: bool = False
    csv: str = ""


def run_label(entry: ReportedRun) -> str:
    """The name of a run: its cell.

    >>> run_label(ReportedRun("x", {"dataset": "fmnist", "alpha": 0.5, "seed": 0}, "done", 1, 1, read=lambda: None))
    'fmnist, alpha 0.5, seed 0'
    """
    plain = ("dataset", "attack", "rule", "run")
    words = [str(v) if axis in plain else f"{axis} {v}" for axis, v in entry.cell.items()]
    return printable(", ".join(words) or entry.id[:12])


def state(study: ReportedStudy) -> Section:
    """What is finished, what is missing and what failed."""
    sentences = generic.missing(study)
    failed = [e for e in study.entries if e.status == "failed"]
    html = part("state", sentences, [(run_label(e), e.error) for e in failed])
    listed = [f"- {for_markdown(text)}" for text in sentences]
    listed += [f"- failed: {for_markdown(run_label(e))}: {for_markdown(e.error)}" for e in failed]
    return Section("", html, "\n".join([*listed, ""]))


def paper(results: Sequence[Result]) -> Section | None:
    """The six tables beside the published numbers; None unless a run is one of their cells, or half of one."""
    if not any(fits(r) or half(r) for r in results):
        return None
    comparisons = {statistic: compare(results, statistic) for statistic in STATISTICS}
    causes = {statistic: why.causes(one, why.noise(results, statistic)) for statistic, one in comparisons.items()}
    accused = by_form(results)
    return Section(
        "The paper's tables",
        paper_tables.html(comparisons, causes, accused),
        paper_tables.markdown(comparisons, causes, accused),
        paper_latex.latex(comparisons) + ("" if accused is None else "\n" + accused.latex()),
        csv=paper_tables.cells_csv(comparisons, causes),
    )


def other_round_numbers(results: Sequence[Result]) -> Section | None:
    """The paper's cells with another number of rounds, beside the published numbers."""
    tables = other_rounds(results)
    return _of_tables("Not the paper's number of rounds", tables) if tables else None


def by_round(results: Sequence[Result], series: Mapping[str, Series]) -> Section | None:
    """Accuracy and attack success after every round."""
    note = "Mean over seeds; the curve of a run that is not finished ends early."
    return _of_charts("Round by round", note, "rounds", rounds.by_round(results, series))


def tables(study: ReportedStudy, results: Sequence[Result]) -> Section | None:
    """Rules by the other axes, of the runs that are not the paper's cells."""
    parts = generic.tables(study.name, [r for r in results if not of_the_paper(r)])
    return _of_tables("Results", parts) if parts else None


def curves(results: Sequence[Result]) -> Section | None:
    """Accuracy and attack success by the share of malicious clients."""
    words = {"last": "The last round", "mean_last_20": "Mean of the last 20 rounds, as in the paper's ablation"}
    note = f"{words[usual_statistic(results)]}; whiskers are the standard deviation over seeds."
    return _of_charts("By the share of malicious clients", note, "ablation", ablation(results))


def ranking(results: Sequence[Result]) -> Section | None:
    """Rules by their worst case."""
    rankings = generic.ranking(results)
    return _of_tables("Ranking by the worst case", rankings) if rankings else None


def detection(results: Sequence[Result]) -> Section | None:
    """ROC, calibration, accusations; of finished runs, where there are any."""
    results = [result for result in results if result.done] or results
    overall, tables = generic.detection(results)
    if not overall:
        return None
    ordered = {rule: overall[rule] for rule in default_first(list(overall), results)}
    charts = [c for c in (roc_chart(ordered), reliability_chart(ordered)) if c.lines]
    by_setting = accusations(results)
    section = _of_tables("Detection", [*tables, *([by_setting] if by_setting else [])])
    note = "The area of a dot is the share of the statements." if len(charts) > 1 else ""
    drawn = join(section.html, part("drawings", note, charts, 300))
    return replace(section, html=drawn, picture="detection", charts=charts)


def provenance(studies: Sequence[ReportedStudy]) -> Section | None:
    """The machines of the runs, from their own records."""
    import json

    counts: dict[str, Counter[str]] = {}
    for entry in (e for study in studies for e in study.entries):
        facts: dict[str, Any] = json.loads(entry.details.get("provenance") or "{}")
        for key, value in facts.items():
            if key not in ("seed", "resumed_at"):  # each run has its own
                counts.setdefault(key, Counter())[str(value)] += 1
    if not counts:
        return None
    rows: list[list[str | int]] = [
        [printable(key), printable(value), n] for key, values in counts.items() for value, n in values.most_common(10)
    ]
    return _of_tables(
        "Made on", [Table("made", "Made on", "From the runs' own records.", ["what", "value", "runs"], rows)]
    )


def overview(results: Sequence[Result]) -> Section | None:
    """Rules by settings as colours: the mean accuracy of the last round; None if there is only one rule or setting."""
    heatmap = generic.accuracies(results)
    if heatmap is None:
        return None
    return Section("Accuracy of the last round", part("map", heatmap, "accuracy 0", "accuracy 1"), "")


def worst_cases(results: Sequence[Result]) -> str:
    """The ranking in a sentence; "" if there is none."""
    sentences: list[str] = []
    note = "the lowest accuracy, or 1 - the highest attack success rate if that is less"
    for table in generic.ranking(results):
        texts = [f"{row[0]} {row[1]:.2f}" for row in table.rows if isinstance(row[1], float)]
        listed = texts if len(texts) <= 4 else [*texts[:3], "...", texts[-1]]
        sentences.append(f"{table.title}{'' if sentences else f' ({note})'}: {', '.join(listed)}.")
    return " ".join(sentences)


def results_table(results: Sequence[Result]) -> tuple[list[str], list[list[Any]]]:
    """Every run with its numbers: columns and rows."""
    axes = list(dict.fromkeys(axis for r in results for axis in r.cell))
    keys = ("accuracy_last", "accuracy_mean_last_20", "asr_last", "asr_mean_last_20")
    columns = [k for k in keys if any(_number(r, k) is not None for r in results)]
    heads = [*axes, "status", *(k.replace("_", " ").replace("asr", "ASR") for k in columns)]
    rows: list[list[Any]] = []
    for r in results:
        first = [r.cell.get(axes[0], "")] if axes else []
        progress = "" if r.done else f" ({r.entry.rounds} of {r.entry.of})"
        others = [r.cell.get(axis, "") for axis in axes[1:]]
        numbers = ["" if (v := _number(r, k)) is None else f"{v:.3f}" for k in columns]
        rows.append([*first, *others, f"{r.entry.status}{progress}", *numbers])
    return heads, rows


def _number(result: Result, key: str) -> float | None:
    return None if key.endswith("last_20") and not result.long else result.numbers.get(key)


def runs(results: Sequence[Result], address: Mapping[str, str]) -> Section:
    """Every run with its numbers; `address` by id leads to its page."""
    columns, rows = results_table(results)
    linked = [(address.get(r.entry.id, ""), row) for r, row in zip(results, rows, strict=True)]
    return Section(f"Runs: {len(rows)}", part("runs_table", columns, linked), "", folded=True)


def _of_charts(title: str, note: str, picture: str, charts: Sequence[Chart]) -> Section | None:
    if not charts:
        return None
    folded = len(charts) > MOST_OPEN
    return Section(title, part("drawings", note, charts), f"{note}\n", picture=picture, charts=charts, folded=folded)


def _of_tables(title: str, tables: Sequence[Table]) -> Section:
    return Section(
        title,
        join(*(part("table", table, level=3) for table in tables)),
        "\n".join(table.markdown() for table in tables),
        "\n".join(table.latex() for table in tables),
        folded=True,
    )
