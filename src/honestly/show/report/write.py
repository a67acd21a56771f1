"""The whole report on disk: `index.html`, one page per run, `README.md`, `tables.tex`, `cells.csv` and `figures/`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from honestly.runs.reader import Rounds
from honestly.show import run_page as run_report
from honestly.show.figure import draw
from honestly.show.report import paper_tables, pictures, sections
from honestly.show.report.by_round import Series, series_of
from honestly.show.report.published import compare, fits
from honestly.show.report.results import STATISTICS, Result, examine
from honestly.show.report.sections import Section, named
from honestly.show.report.sources import Entry, Study
from honestly.show.text import for_html, for_markdown, printable

#: Up to so many runs are shown on the index itself, with all their maps; of more, each has a page.
FEW = 6
STYLE = """
.chapter{margin-top:3rem;padding-top:1rem;border-top:2px solid var(--line);font-size:1.8em}
td.best{font-weight:700}nav{margin:1rem 0}
"""
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
class Options:
    """What to write: pages of runs, files of pictures, the commands, one a line, that make it again; or, in place of
    title and commands, the author's own words in Markdown."""

    pages: bool = True
    figures: bool = True
    command: str = ""
    preface: str = ""


def write(studies: Sequence[Study], out: Path, options: Options | None = None) -> list[Path]:
    """Write the report; the files, pages of runs apart."""
    options = options or Options()
    if options.figures and not pictures.available():
        options = replace(options, figures=False)
    out.mkdir(parents=True, exist_ok=True)
    if options.figures:
        (out / "figures").mkdir(exist_ok=True)
    chapters = [_chapter(study, out, options) for study in studies]
    mine = [r for chapter in chapters for r in chapter.results if fits(r)]
    paper, made = sections.paper(mine), sections.provenance(studies)
    texts = {
        "index.html": _index(chapters, paper, made),
        "README.md": _readme(chapters, paper, made, options),
    }
    every = [*([paper] if paper else []), *(section for chapter in chapters for section in chapter.sections)]
    latex = "\n".join(section.latex for section in every if section.latex)
    if latex:
        texts |= {"tables.tex": PREAMBLE + latex, "tables-document.tex": DOCUMENT}
    if paper is not None:
        texts["cells.csv"] = paper_tables.cells_csv({s: compare(mine, s) for s in STATISTICS})
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [*(out / name for name in texts), *(file for chapter in chapters for file in chapter.files)]


@dataclass(frozen=True)
class Chapter:
    """What is said of one study, and the pictures that were drawn of it."""

    name: str
    results: Sequence[Result]
    sections: Sequence[Section]
    files: Sequence[Path]


def _chapter(study: Study, out: Path, options: Options) -> Chapter:
    few = len(study.entries) <= FEW
    kept: list[tuple[Entry, Rounds]] = []
    address: dict[str, str] = {}

    series: dict[str, Series] = {}

    def each(entry: Entry, rounds: Rounds) -> None:
        """Many runs are written one by one and let go; few are kept for the index."""
        series[entry.id] = series_of(rounds)
        if few:
            kept.append((entry, rounds))
        elif options.pages and rounds.records:
            address[entry.id] = _write_page(entry, rounds, out)

    results = examine(study.entries, each)
    files: list[Path] = []
    found = [sections.state(study), _few(study, kept, out if options.figures else None, files)]
    found.append(sections.curves(results))
    if len(study.entries) > 1:
        found += [sections.beside(results), None if few else sections.by_round(results, series)]
        found += [sections.tables(study, results), sections.ranking(results)]
    found += [sections.detection(results), None if few else sections.runs(results, address)]
    shown = [section for section in found if section is not None]
    if options.figures:
        for section in shown:
            if section.charts:
                files += pictures.draw_charts(section.charts, out / _picture(study.name, section))
    return Chapter(study.name, results, shown, files)


def _picture(study: str, section: Section) -> str:
    return f"figures/{_slug(study)}-{section.picture}"


def page_name(id: str) -> str:
    """The file of a run's page: an id that is not a plain word (a folder's name, say) is hashed.

    >>> page_name("0a1b"), page_name("../x")[:11]
    ('runs/0a1b.html', 'runs/d6b96a')
    """
    safe = id if re.fullmatch(r"[0-9A-Za-z_-]{1,80}", id) else hashlib.sha256(id.encode(errors="replace")).hexdigest()
    return f"runs/{safe}.html"


def _run(entry: Entry, rounds: Rounds) -> run_report.Run:
    return run_report.Run(named(entry), rounds.records, rounds.clients, rounds.known, entry.details)


def _write_page(entry: Entry, rounds: Rounds, out: Path) -> str:
    name = page_name(entry.id)
    path = out / name
    path.parent.mkdir(exist_ok=True)
    progress = "" if entry.status == "done" else f"{entry.status}: {entry.rounds} of {entry.of} rounds. {entry.error}"
    text = run_report.page(named(entry), [_run(entry, rounds)], lead=progress, back="../index.html")
    path.write_text(text, encoding="utf-8")
    return name


def _few(study: Study, kept: Sequence[tuple[Entry, Rounds]], out: Path | None, files: list[Path]) -> Section | None:
    """All runs of a small study side by side: maps, curves and accusations, as in the paper's Figure 1."""
    shown = [(entry, rounds) for entry, rounds in kept if rounds.records]
    if not shown:
        return None
    body = run_report.body([_run(entry, rounds) for entry, rounds in shown])
    lines: list[str] = []
    for number, (entry, rounds) in enumerate(shown, start=1):
        lines += [f"**{for_markdown(named(entry))}**", ""]
        if out is not None:
            stem = f"{_slug(study.name)}-{number}"
            drawn = [out / "figures" / f"{stem}.{kind}" for kind in pictures.FORMATS]
            attack = (entry.attack or "attack") if rounds.known else None
            draw(rounds.records, *drawn, clients=len(rounds.clients), rule=entry.rule, attack=attack)
            files += drawn
            lines += [f"![who was believed](figures/{stem}.png)", ""]
        lines += [*_held_against(rounds), ""]
    return Section("Runs", body, "\n".join(lines))


def _held_against(rounds: Rounds) -> list[str]:
    """Whom the rule accused or refused, and in how many rounds."""
    accused = [0] * len(rounds.clients)
    refused = [0] * len(rounds.clients)
    for record in rounds.records:
        for k in record.accused or ():
            accused[k] += 1
        for k in record.excluded:
            refused[k] += 1
    held = [k for k in range(len(rounds.clients)) if accused[k] or refused[k]]
    if not held:
        return ["Nobody was accused or refused."]
    held.sort(key=lambda k: -(accused[k] + refused[k]))
    rows = [f"| {for_markdown(rounds.clients[k])} | {accused[k]} | {refused[k]} |" for k in held[:50]]
    more = [] if len(held) <= 50 else ["", f"{len(held) - 50} more clients are not shown."]
    return ["| client | rounds accused | rounds refused |", "|---|---:|---:|", *rows, *more]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "study"


def _title(chapters: Sequence[Chapter]) -> str:
    return printable(", ".join(chapter.name for chapter in chapters) or "nothing")


def _index(chapters: Sequence[Chapter], paper: Section | None, made: Section | None) -> str:
    body: list[str] = []
    links = ["<a href='#paper'>the paper's tables</a>"] if paper else []
    several = len(chapters) > 1
    for number, chapter in enumerate(chapters):
        if several:
            body.append(f"<h2 class='chapter' id='c{number}'>{for_html(chapter.name)}</h2>")
            links.append(f"<a href='#c{number}'>{for_html(chapter.name)}</a>")
        for i, section in enumerate(chapter.sections):
            if section.title:
                body.append(f"<h2 id='c{number}-{i}'>{for_html(section.title)}</h2>")
                links += [] if several else [f"<a href='#c{number}-{i}'>{for_html(section.title.lower())}</a>"]
            body.append(section.html)
    if made is not None:
        body.append(f"<details><summary>Made on</summary>{made.html}</details>")
    nav = f"<nav>{' · '.join(links)}</nav>" if len(links) > 1 else ""
    text = nav + (paper.html if paper else "") + "\n".join(body)
    return run_report.document(_title(chapters), text, style=paper_tables.STYLE + STYLE)


def _readme(chapters: Sequence[Chapter], paper: Section | None, made: Section | None, options: Options) -> str:
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
    if made is not None:
        lines += [made.markdown]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"
