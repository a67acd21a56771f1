"""A stress study as files: every case (JSON lines, CSV), tables (Markdown, JSON), heatmaps and one HTML page."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from honestly._version import __version__
from honestly.runs.text import csv_text, json_value
from honestly.runs.writing import remedies, write_file
from honestly.show import downloads, figure, svg
from honestly.show.chart import Chart, Heatmap, Line
from honestly.show.downloads import Download
from honestly.show.html import render
from honestly.show.stress_cases import attacks_of, fixed_attacks, mean, statements
from honestly.show.stress_tables import tables
from honestly.show.tables import Table, text
from honestly.studies.attacked import Case
from honestly.studies.scores import reliability
from honestly.studies.stress import StressStudy

#: The most heatmaps, one for each number of attackers.
MOST_MAPS = 3
#: The colours of kappa, as powers of ten: blue at the first, orange at the second.
BEST, WORST = -3.0, 1.0
KEY = (f"kappa {10**WORST:g} or more", f"kappa {10**BEST:g} or less")


def about(study: StressStudy, seconds: float) -> dict[str, Any]:
    """What was run, on what, and how long it took."""
    return {
        "study": asdict(study),
        "seconds": round(seconds, 1),
        "version": __version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": f"{platform.python_version()}, NumPy {np.__version__}",
    }


def write(study: StressStudy, cases: Sequence[Case], directory: Path, *, seconds: float) -> list[Path]:
    """Write all files to the directory and return their paths."""
    with remedies(directory):
        directory.mkdir(parents=True, exist_ok=True)
    all_tables = tables(cases, study.attacks)
    facts = about(study, seconds)
    maps, reliable = heatmaps(cases), reliability_chart(cases)
    pictures: dict[str, bytes] = {}
    if maps:
        pictures["heatmap.png"] = figure.heatmaps_png(maps, KEY)
    if reliable is not None:
        pictures["reliability.png"] = figure.png(figure.chart_figure([reliable]))
    drawn = [*maps[::-1], *([reliable] if reliable is not None else [])]
    files = [
        *downloads.inside("cases.csv", _csv(cases)),
        *downloads.inside("summary.json", downloads.as_json({t.name: t.records() for t in all_tables})),
        *(downloads.inside("figure.svg", svg.standalone(drawn)) if drawn else []),
        *(file for name, picture in pictures.items() for file in downloads.inside(name, picture)),
    ]
    texts = {
        "cases.jsonl": lines(cases),
        "cases.csv": _csv(cases),
        "summary.json": json.dumps(
            {**facts, "tables": {t.name: t.records() for t in all_tables}}, indent=1, allow_nan=False
        ),
        "summary.md": "\n".join(table.markdown() for table in all_tables),
        "index.html": page(all_tables, maps, reliable, facts, files),
    }
    for name, content in {**texts, **pictures}.items():
        write_file(directory / name, content)
    return [directory / name for name in (*texts, *pictures)]


def lines(cases: Sequence[Case]) -> str:
    """Every case as a line of JSON."""
    return "".join(json.dumps(json_value(case.asdict()), allow_nan=False) + "\n" for case in cases)


def read(path: Path) -> list[Case]:
    """The cases of an earlier study, from its cases.jsonl."""
    with path.open(encoding="utf-8") as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line in file]
    for row in rows:
        row["kappa"] = math.inf if row["kappa"] is None else row["kappa"]
        if row.get("where") is not None and row["layer"] is None:
            row["layer"] = math.inf
    return [Case(**row) for row in rows]


def _csv(cases: Sequence[Case]) -> str:
    names = [field.name for field in fields(Case) if field.name != "honesty"]
    return csv_text(names, ([getattr(case, name) for name in names] for case in cases))


def page(
    all_tables: Sequence[Table], maps: Sequence[Heatmap], reliable: Chart | None, facts: dict[str, Any],
    files: Sequence[Download],
) -> str:  # fmt: skip
    """The self-contained HTML page."""
    ran = [table for table in all_tables if table.name == "run"]
    return render(
        "stress.html", heading="Which rule withstands which attack", verdict=sentence(all_tables),
        tables=[*ran, *(table for table in all_tables if table.name != "run")], maps=maps[::-1], key=KEY,
        reliability=reliable, facts=json.dumps(facts, indent=1), downloads=files,
    )  # fmt: skip


def sentence(tables: Sequence[Table]) -> str:
    """The worst case of the three best rules and of the plain mean, with the most attackers that were tried."""
    sentences: list[str] = []
    for name, words in (("worst", "worst kappa"), ("layer_worst", "worst kappa of a single layer")):
        for table in (one for one in tables if one.name == name):
            column = len(table.columns) - 1
            ranked = sorted((row[column], str(row[0])) for row in table.rows if isinstance(row[column], float))
            chosen = [*ranked[:3], *(one for one in ranked[3:] if one[1] == "mean")]
            most = re.sub(r"\D", "", table.columns[column])
            ends = ", ".join(f"{rule} {text(kappa)}" for kappa, rule in chosen)
            sentences.append(f"{most} attackers among {table.title.rpartition(', ')[2]}, {words}: {ends}.")
    return " ".join(sentences)


def heatmaps(cases: Sequence[Case]) -> list[Heatmap]:
    """Rules by attacks, one for each of the three largest numbers of attackers; where layers are known, the worst."""
    informed = [case for case in cases if case.malicious and not case.guessed]
    cells: dict[tuple[int, str, str], list[float]] = {}
    for case in informed:
        kappa = case.kappa if case.layer is None else case.layer
        cells.setdefault((case.malicious, case.rule, case.attack), []).append(kappa)
    rules, attacks = list(dict.fromkeys(case.rule for case in informed)), attacks_of(informed)
    return [_heatmap(M, cells, rules, attacks) for M in sorted({case.malicious for case in informed})[-MOST_MAPS:]]


def _heatmap(
    M: int, cells: dict[tuple[int, str, str], list[float]], rules: Sequence[str], attacks: Sequence[str]
) -> Heatmap:
    kappas = [[mean(cells.get((M, rule, attack), [])) for attack in attacks] for rule in rules]

    def good(kappa: float | None) -> float:
        if kappa is None:
            return math.nan
        power = math.log10(min(max(kappa, 10**BEST), 10**WORST))
        return 1 - (power - BEST) / (WORST - BEST)

    def word(i: int, j: int) -> str:
        return f"kappa {text(kappas[i][j])}"

    values = np.array([[good(kappa) for kappa in row] for row in kappas])
    return Heatmap(f"Rules under each attack, {M} malicious", "attack", "rule", rules, attacks, values, word)


def reliability_chart(cases: Sequence[Case]) -> Chart | None:
    """Stated honesty against the share that was honest, for every rule that states it."""
    lines: list[Line] = []
    for rule in dict.fromkeys(case.rule for case in cases):
        curve = reliability(*statements(fixed_attacks(case for case in cases if case.rule == rule)))
        total = sum(b.count for b in curve)
        if curve:
            shares = [b.count / total for b in curve]
            lines.append(Line(rule, [b.stated for b in curve], [b.true for b in curve], shares=shares))
    title = "Reliability of honesty under the fixed attacks"
    if not lines:
        return None
    return Chart(title, "stated honesty", "share that was honest", lines, dots=True, diagonal=True)
