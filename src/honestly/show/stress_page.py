"""A stress study on paper: every case (JSON lines, CSV), tables (Markdown, JSON), heatmaps and one HTML page."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from honestly._version import __version__
from honestly.show.stress_cases import attacks_of, fixed, mean, statements
from honestly.show.stress_tables import tables
from honestly.studies.attacked import Case
from honestly.studies.scores import reliability
from honestly.studies.stress import Study

STYLE = """
:root { color-scheme: light dark; --line: #8884; --mark: #1a7f37; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } td.best { font-weight: 700; color: var(--mark); }
img { max-width: 100%; background: #fff; border-radius: 6px; } p { max-width: 60rem; }
"""


def about(study: Study, seconds: float) -> dict[str, Any]:
    """What was run, on what, and how long it took."""
    return {
        "study": asdict(study),
        "seconds": round(seconds, 1),
        "version": __version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": f"{platform.python_version()}, NumPy {np.__version__}",
    }


def write(study: Study, cases: Sequence[Case], directory: Path, *, seconds: float) -> list[Path]:
    """Everything into the directory; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    found = tables(cases, study.attacks)
    facts = about(study, seconds)
    pictures = {"heatmap.png": heatmap(cases), "reliability.png": reliability_plot(cases)}
    texts = {
        "cases.jsonl": lines(cases),
        "cases.csv": _csv(cases),
        "summary.json": json.dumps(
            {**facts, "tables": {t.name: t.records() for t in found}}, indent=1, allow_nan=False
        ),
        "summary.md": "\n".join(table.markdown() for table in found),
        "index.html": page(found, pictures, facts),
    }
    for name, content in texts.items():
        (directory / name).write_text(content, encoding="utf-8")
    for name, picture in pictures.items():
        if picture is not None:
            (directory / name).write_bytes(picture)
    return [directory / name for name in (*texts, *(n for n, p in pictures.items() if p is not None))]


def lines(cases: Sequence[Case]) -> str:
    """Every case as a line of JSON."""
    return "".join(json.dumps(_plain(case.asdict()), allow_nan=False) + "\n" for case in cases)


def read(path: Path) -> list[Case]:
    """The cases of an earlier study, from its cases.jsonl."""
    with path.open(encoding="utf-8") as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line in file]
    for row in rows:
        row["kappa"] = math.inf if row["kappa"] is None else row["kappa"]
        if row.get("where") is not None and row["layer"] is None:
            row["layer"] = math.inf
    return [Case(**row) for row in rows]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in row.items()}


def _csv(cases: Sequence[Case]) -> str:
    names = [field.name for field in fields(Case) if field.name != "honesty"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(case, name) for name in names] for case in cases)
    return out.getvalue()


def page(found: Sequence[Any], pictures: dict[str, bytes | None], facts: dict[str, Any]) -> str:
    """One HTML file that needs nothing else."""
    images = "".join(
        f'<p><img alt="{name}" src="data:image/png;base64,{base64.b64encode(picture).decode()}"></p>'
        for name, picture in pictures.items()
        if picture is not None
    )
    words = (
        "kappa = |aggregate - honest mean|^2 / honest variance: 0 is the mean of the honest clients, 1 is as wrong as "
        "trusting one honest client at random. Where layers are known, it is also measured in each layer by itself: "
        "an attack may sit in a single one."
    )
    body = "".join(table.html() for table in found)
    details = html.escape(json.dumps(facts, indent=1))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>honestly stress</title><style>{STYLE}</style><h1>Which rule withstands what</h1><p>{words}</p>"
        f"{images}{body}<details><summary>What was run</summary><pre>{details}</pre></details></html>"
    )


def heatmap(cases: Sequence[Case]) -> bytes | None:
    """Rules by attacks, one panel for each of the three largest numbers of attackers; colour is log10 of kappa.

    Where layers are known it is the kappa of the worst one.
    """
    from matplotlib.figure import Figure

    shown = [case for case in cases if case.malicious and not case.guessed]
    if not shown:
        return None
    counts = sorted({case.malicious for case in shown})[-3:]
    cells: dict[tuple[int, str, str], list[float]] = {}
    for case in shown:
        cells.setdefault((case.malicious, case.rule, case.attack), []).append(
            case.kappa if case.layer is None else case.layer
        )
    rules = list(dict.fromkeys(case.rule for case in shown))
    attacks = attacks_of(shown)
    figure: Any = Figure(
        figsize=(3 + 0.32 * len(attacks), len(counts) * (0.8 + 0.26 * len(rules)) + 2.2), layout="constrained"
    )
    axes = figure.subplots(len(counts), 1, squeeze=False, sharex=True)[:, 0]
    image = None
    for M, axis in zip(counts, axes, strict=True):
        grid = np.full((len(rules), len(attacks)), np.nan)
        for i, rule in enumerate(rules):
            for j, attack in enumerate(attacks):
                value = mean(cells.get((M, rule, attack), []))
                grid[i, j] = np.nan if value is None else math.log10(min(max(value, 1e-3), 1e1))
        image = axis.imshow(grid, cmap="RdYlGn_r", vmin=-3, vmax=1, aspect="auto")
        axis.set_yticks(range(len(rules)), rules, fontsize=8)
        axis.set_title(f"{M} malicious", loc="left", fontsize=9)
    axes[-1].set_xticks(range(len(attacks)), attacks, rotation=90, fontsize=7)
    bar = figure.colorbar(image, ax=list(axes), ticks=[-3, -2, -1, 0, 1], shrink=0.6)
    bar.ax.set_yticklabels(["0.001", "0.01", "0.1", "1", "10 or more"])
    bar.set_label("kappa (of the worst layer), mean over populations", fontsize=8)
    return _png(figure)


def reliability_plot(cases: Sequence[Case]) -> bytes | None:
    """Stated honesty against the share that was honest, for every rule that states it."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(5, 4.4), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--")
    drawn = False
    for rule in dict.fromkeys(case.rule for case in cases):
        curve = reliability(*statements(fixed(case for case in cases if case.rule == rule)))
        if curve:
            drawn = True
            sizes = [6 + 40 * math.sqrt(b.count / sum(c.count for c in curve)) for b in curve]
            line = axis.plot([b.said for b in curve], [b.true for b in curve], lw=1, label=rule)[0]
            axis.scatter([b.said for b in curve], [b.true for b in curve], s=sizes, color=line.get_color())
    axis.set(xlabel="stated honesty", ylabel="share that was honest", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.set_title("Reliability of honesty under the fixed attacks", fontsize=10, loc="left")
    if drawn:
        axis.legend(fontsize=8)
    return _png(figure) if drawn else None


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    # no date or version inside: the same study gives the same bytes
    figure.savefig(out, format="png", dpi=120, metadata={"Software": None})
    return out.getvalue()
