"""The whole report on disk: `index.html`, one page per run, `README.md`, `tables.tex`, `cells.csv` and `figures/`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from honestly.runs.reader import Rounds
from honestly.runs.writing import remedies, write_file
from honestly.show import downloads, figure, run_page, svg, verdict
from honestly.show.downloads import Download
from honestly.show.html import render
from honestly.show.report import sections
from honestly.show.report.by_round import Series, series_of
from honestly.show.report.results import Result, examine
from honestly.show.report.sections import Section, run_label
from honestly.show.report.sources import ReportedRun, ReportedStudy
from honestly.show.text import for_markdown, printable, shorten

#: Up to this many runs are shown on the index with their maps; otherwise each run has its own page.
FEW = 6
PREAMBLE = (
    "% \\input this; it needs \\usepackage{booktabs,multirow,graphicx,amssymb}\n"
    "% (tables-document.tex is a document that does)\n\n"
)
DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,margin=1.5cm]{geometry}
\usepackage{booktabs,multirow,graphicx,amssymb}
\begin{document}
\input{tables}
\end{document}
"""


@dataclass(frozen=True)
class ReportOptions:
    """What to write: pages of runs, picture files, and the commands, one per line, that reproduce the report; `preface`
    replaces title and commands by your own Markdown."""

    pages: bool = True
    figures: bool = True
    command: str = ""
    preface: str = ""


def write(studies: Sequence[ReportedStudy], out: Path, options: ReportOptions | None = None) -> list[Path]:
    """Write the report and return its files, except the pages of runs."""
    options = options or ReportOptions()
    if options.figures and not figure.available():
        options = replace(options, figures=False)
    with remedies(out):
        out.mkdir(parents=True, exist_ok=True)
        if options.figures:
            (out / "figures").mkdir(exist_ok=True)
    chapters = [_chapter(study, out, options) for study in studies]
    paper = sections.paper([r for chapter in chapters for r in chapter.results])
    origin = sections.provenance(studies)
    texts = {
        "index.html": _index(chapters, paper, origin),
        "README.md": _readme(chapters, paper, origin, options),
    }
    every = [*([paper] if paper else []), *(section for chapter in chapters for section in chapter.sections)]
    latex = "\n".join(section.latex for section in every if section.latex)
    if latex:
        texts |= {"tables.tex": PREAMBLE + latex, "tables-document.tex": DOCUMENT}
    if paper is not None:
        texts["cells.csv"] = paper.csv
    for name, text in texts.items():
        write_file(out / name, text)
    return [*(out / name for name in texts), *(file for chapter in chapters for file in chapter.files)]


@dataclass(frozen=True)
class Chapter:
    """The part of a report about one study: a sentence, sections, picture files and downloads."""

    name: str
    title: str
    verdict: str
    results: Sequence[Result]
    sections: Sequence[Section]
    files: Sequence[Path]
    downloads: Sequence[Download]


def _chapter(study: ReportedStudy, out: Path, options: ReportOptions) -> Chapter:
    few = len(study.entries) <= FEW
    few_runs: list[tuple[ReportedRun, Rounds]] = []
    address: dict[str, str] = {}

    series: dict[str, Series] = {}

    def each(entry: ReportedRun, rounds: Rounds) -> None:
        """Of many runs, write each page at once and release the rounds; of few, keep them for the index."""
        series[entry.id] = series_of(rounds)
        if few:
            few_runs.append((entry, rounds))
        elif options.pages and rounds.records:
            address[entry.id] = _write_page(entry, rounds, out)

    results = examine(study.entries, each)
    files: list[Path] = []
    candidates: list[Section | None] = [
        sections.state(study) if _is_unfinished(study) else replace(sections.state(study), html=Markup("")),
        _few(study, few_runs, out if options.figures else None, files),
    ]
    candidates += [None if few else sections.overview(results), sections.curves(results)]
    if len(study.entries) > 1:
        candidates += [sections.other_round_numbers(results), None if few else sections.by_round(results, series)]
        candidates += [sections.tables(study, results), sections.ranking(results)]
    candidates += [sections.detection(results), None if few else sections.runs(results, address)]
    parts = [section for section in candidates if section is not None]
    if options.figures:
        for section in parts:
            if section.charts:
                files += figure.draw_charts(section.charts, out / _picture(study.name, section))
    runs = [_run(entry, rounds) for entry, rounds in few_runs if rounds.records]
    sentence = verdict.sentence(runs) if runs else sections.worst_cases(results)
    return Chapter(
        study.name, _heading(study, few_runs), sentence, results, parts, files, _downloads(runs, results, parts)
    )


def _is_unfinished(study: ReportedStudy) -> bool:
    """Whether a run is missing or unfinished, or the study has notes."""
    return bool(study.notes) or not study.entries or any(entry.status != "done" for entry in study.entries)


def _heading(study: ReportedStudy, few_runs: Sequence[tuple[ReportedRun, Rounds]]) -> str:
    """The title: the name of a study, the rule and attack of a single run, or the run of a federation."""
    if len(study.entries) != 1 or not few_runs:
        return study.name
    entry, rounds = few_runs[0]
    if rounds.known:
        return f"{run_label(entry)} ({study.name})"
    return f"Federation {shorten(rounds.run or study.name, 80)}"


def _downloads(runs: Sequence[run_page.RunView], results: Sequence[Result], parts: Sequence[Section]) -> list[Download]:
    """Rounds of few runs, results of many, and the drawings."""
    if runs:
        return run_page.files(runs)
    columns, rows = sections.results_table(results)
    charts = [chart for section in parts for chart in section.charts]
    return [
        *downloads.inside("results.csv", downloads.as_csv(columns, rows)),
        *downloads.inside("results.json", downloads.as_json([dict(zip(columns, row, strict=True)) for row in rows])),
        *(downloads.inside("figure.svg", svg.standalone(charts)) if charts else []),
    ]


def _picture(study: str, section: Section) -> str:
    return f"figures/{_slug(study)}-{section.picture}"


def page_name(id: str) -> str:
    """The file of a run's page: an id that is not a plain word (a folder's name, say) is hashed.

    >>> page_name("0a1b"), page_name("../x")[:11]
    ('runs/0a1b.html', 'runs/d6b96a')
    """
    safe = id if re.fullmatch(r"[0-9A-Za-z_-]{1,80}", id) else hashlib.sha256(id.encode(errors="replace")).hexdigest()
    return f"runs/{safe}.html"


def _run(entry: ReportedRun, rounds: Rounds) -> run_page.RunView:
    return run_page.RunView(run_label(entry), rounds.records, rounds.clients, rounds.known, entry.details)


def _write_page(entry: ReportedRun, rounds: Rounds, out: Path) -> str:
    """Write the page of one of many runs; the browser draws its PNG file, which would take ten times as long here."""
    name = page_name(entry.id)
    path = out / name
    progress = "" if entry.status == "done" else f"{entry.status}: {entry.rounds} of {entry.of} rounds. {entry.error}"
    text = run_page.page(run_label(entry), [_run(entry, rounds)], lead=progress, back="../index.html")
    with remedies(path):  # not atomically: waiting for the disk after each of a thousand pages takes long
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return name


def _figure(entry: ReportedRun, rounds: Rounds) -> Any:
    """The picture of one run; in a federation nobody knows who attacked."""
    attack = (entry.attack or "attack") if rounds.known else None
    return figure.run_figure(rounds.records, clients=len(rounds.clients), rule=entry.rule, attack=attack)


def _few(
    study: ReportedStudy, few_runs: Sequence[tuple[ReportedRun, Rounds]], out: Path | None, files: list[Path]
) -> Section | None:
    """All runs of a small study side by side: maps, curves and accusations, as in the paper's Figure 1."""
    started = [(entry, rounds) for entry, rounds in few_runs if rounds.records]
    if not started:
        return None
    body = run_page.body([_run(entry, rounds) for entry, rounds in started])
    lines: list[str] = []
    for number, (entry, rounds) in enumerate(started, start=1):
        lines += [f"**{for_markdown(run_label(entry))}**", ""]
        if out is not None:
            stem = f"{_slug(study.name)}-{number}"
            drawn = [out / "figures" / f"{stem}.{kind}" for kind in figure.FORMATS]
            figure.save(_figure(entry, rounds), *drawn)
            files += drawn
            lines += [f"![who was believed](figures/{stem}.png)", ""]
        lines += [*_blame_lines(rounds), ""]
    return Section("", body, "\n".join(lines))


def _blame_lines(rounds: Rounds) -> list[str]:
    """Which clients were accused or excluded, and in how many rounds."""
    accused = [0] * len(rounds.clients)
    excluded = [0] * len(rounds.clients)
    for record in rounds.records:
        for k in record.accused or ():
            accused[k] += 1
        for k in record.excluded:
            excluded[k] += 1
    blamed = [k for k in range(len(rounds.clients)) if accused[k] or excluded[k]]
    if not blamed:
        return ["Nobody was accused or excluded."]
    blamed.sort(key=lambda k: -(accused[k] + excluded[k]))
    rows = [f"| {for_markdown(rounds.clients[k])} | {accused[k]} | {excluded[k]} |" for k in blamed[:50]]
    more = [] if len(blamed) <= 50 else ["", f"{len(blamed) - 50} more clients are not shown."]
    return ["| client | rounds accused | rounds excluded |", "|---|---:|---:|", *rows, *more]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "study"


def _title(chapters: Sequence[Chapter]) -> str:
    if len(chapters) == 1:
        return printable(chapters[0].title)
    return printable(", ".join(chapter.name for chapter in chapters) or "nothing")


def _index(chapters: Sequence[Chapter], paper: Section | None, origin: Section | None) -> str:
    links = [("paper", "the paper's tables")] if paper else []
    several = len(chapters) > 1
    entries: list[dict[str, Any]] = []
    for number, chapter in enumerate(chapters):
        numbered = [(f"c{number}-{i}", section) for i, section in enumerate(chapter.sections)]
        entries.append({"id": f"c{number}", "name": chapter.name, "verdict": chapter.verdict, "sections": numbered})
        if several:
            links.append((f"c{number}", chapter.name))
        else:
            links += [(id, section.title.lower()) for id, section in numbered if section.title]
    verdict = "" if several else chapters[0].verdict if chapters else ""  # of several studies, each has its own below
    drawn = [file for chapter in chapters for file in chapter.files if file.suffix == ".png"]
    pictures = [Download(file.name, Markup(f"figures/{quote(file.name)}")) for file in drawn[:1]]
    files = [file for chapter in chapters for file in chapter.downloads]
    return render(
        "study.html", heading=_title(chapters), verdict=verdict, links=links, paper=paper, chapters=entries,
        made=origin, downloads=[*files, *pictures],
    )  # fmt: skip


def _readme(chapters: Sequence[Chapter], paper: Section | None, origin: Section | None, options: ReportOptions) -> str:
    lines = [options.preface.strip() or f"# {for_markdown(_title(chapters))}", ""]
    if options.command and not options.preface:
        lines += [
            "Made by",
            "```sh",
            *(printable(line).replace("`", "") for line in options.command.splitlines()),
            "```",
            "",
        ]
    if paper is not None:
        lines += [paper.markdown, ""]
    for chapter in chapters:
        lines += [f"## {for_markdown(chapter.name)}", ""] if len(chapters) > 1 or paper is not None else []
        for section in chapter.sections:
            if section.markdown:
                lines += [f"### {for_markdown(section.title)}", ""] if section.title else []
                lines += [section.markdown, ""]
            if section.charts and options.figures:
                lines += [f"![{section.title}]({_picture(chapter.name, section)}.png)", ""]
    if origin is not None:
        lines += [origin.markdown]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"
