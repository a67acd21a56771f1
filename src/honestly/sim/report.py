"""A run, or several side by side, as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from honestly.sim.experiment import Experiment
from honestly.sim.figure import Grid, attack_grid, belief_grid, curve
from honestly.sim.summary import summary

COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df", "#bc4c00", "#57606a")
STYLE = """
:root{color-scheme:light dark;--line:#8884}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}
th,td{padding:.3rem .8rem;text-align:right;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}
svg{width:100%;height:auto;margin:.3rem 0 1.2rem}
text{font:11px system-ui,sans-serif;fill:currentColor}
h2{margin-top:2rem}code{word-break:break-all}.key{margin-right:1.2rem}
"""


@dataclass(frozen=True)
class Run:
    """A run and what to call it."""

    title: str
    experiment: Experiment
    records: Sequence[dict[str, Any]]


def page(heading: str, runs: Sequence[Run], *, lead: str = "") -> str:
    """The whole page."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>{html.escape(heading)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{html.escape(heading)}</h1>",
        f"<p>{html.escape(lead)}</p>" if lead else "",
        _table(runs),
        "<h2>Test accuracy</h2>",
        _chart([(run.title, *curve(run.records, "accuracy")) for run in runs]),
    ]
    if any(r.get("asr") is not None for run in runs for r in run.records):
        parts += ["<h2>Attack success rate</h2>", _chart([(run.title, *curve(run.records, "asr")) for run in runs])]
    for run in runs:
        parts += [f"<h2>{html.escape(run.title)}</h2>", _maps(run)]
        parts.append(
            f"<details><summary>settings</summary><p>id <code>{run.experiment.id}</code></p>"
            f"<p><code>{html.escape(run.experiment.canonical)}</code></p></details>"
        )
    return "\n".join([*parts, "</body></html>\n"])


def _number(value: Any, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _table(runs: Sequence[Run]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in (
            "run", "accuracy, last", "accuracy, mean of last 20", "ASR, last", "falsely accused a round",
            "missed a round",
        )
    )  # fmt: skip
    rows: list[str] = []
    for run in runs:
        s = summary(run.records)
        cells = [
            html.escape(run.title), _number(s["accuracy_last"]), _number(s["accuracy_mean_last_20"]),
            _number(s["asr_last"]), _number(s["false_accusations_per_round"], 2), _number(s["misses_per_round"], 2),
        ]  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _chart(lines: Sequence[tuple[str, list[int], list[float]]]) -> str:
    """Curves between 0 and 1 over the rounds."""
    last = max((t for _, ts, _ in lines for t in ts), default=1)
    w, h, left, low = 900.0, 240.0, 34.0, 20.0

    def x(t: float) -> float:
        return left + (w - left - 8) * (t - 1) / max(last - 1, 1)

    def y(v: float) -> float:
        return (h - low) * (1 - v) + 4

    out = [f"<svg viewBox='0 0 {w:g} {h + 8:g}' role='img'>"]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        out.append(f"<line x1='{left}' x2='{w}' y1='{y(tick):.1f}' y2='{y(tick):.1f}' stroke='#8884'/>")
        out.append(f"<text x='0' y='{y(tick) + 4:.1f}'>{tick:g}</text>")
    for t in sorted({1, last, *range(0, last, max(1, last // 8))} - {0}):
        out.append(f"<text x='{x(t):.1f}' y='{h + 4:g}' text-anchor='middle'>{t}</text>")
    keys: list[str] = []
    for number, (title, ts, vs) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in zip(ts, vs, strict=True))
        out.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        keys.append(f"<span class='key'><b style='color:{colour}'>&#9644;</b> {html.escape(title)}</span>")
    return "".join(out) + "</svg><p>" + "".join(keys) + "</p>"


def _maps(run: Run) -> str:
    K = run.experiment.clients
    parts = ["<p>who attacked (dark red), by client and round</p>", _heat(attack_grid(run.records, K), _red)]
    belief = belief_grid(run.records, K)
    if belief is not None:
        grid, label = belief
        parts += [f"<p>{label}: red 0, green 1</p>", _heat(grid, _red_to_green)]
    return "".join(parts)


def _red(v: float) -> str:
    return "#b3122a" if v > 0.5 else "#f3e3e0"


def _red_to_green(v: float) -> str:
    """Red at 0, yellow at one half, green at 1."""
    stops = np.array([[197, 48, 48], [245, 222, 120], [46, 140, 87]], dtype=float)
    at = min(max(v, 0.0), 1.0) * 2
    i = min(int(at), 1)
    r, g, b = stops[i] + (at - i) * (stops[i + 1] - stops[i])
    return f"#{round(r):02x}{round(g):02x}{round(b):02x}"


def _heat(grid: Grid, colour: Any) -> str:
    K, T = grid.shape
    left, side = 30.0, 870.0 / max(T, 1)
    tall = min(max(6.0, 260.0 / max(K, 1)), 16.0)
    out = [f"<svg viewBox='0 0 900 {K * tall + 18:.0f}' role='img' shape-rendering='crispEdges'>"]
    for k in range(K):
        if k % max(1, K // 10) == 0:
            out.append(f"<text x='0' y='{(k + 0.8) * tall:.1f}'>{k}</text>")
        for t in range(T):
            v = grid[k, t]
            if np.isnan(v):
                continue
            out.append(
                f"<rect x='{left + t * side:.2f}' y='{k * tall:.1f}' width='{side * 0.96:.2f}' "
                f"height='{tall * 0.94:.1f}' fill='{colour(float(v))}'>"
                f"<title>client {k}, round {t + 1}: {v:.3g}</title></rect>"
            )
    for t in sorted({0, *range(max(1, T // 8) - 1, T, max(1, T // 8))}):
        out.append(
            f"<text x='{left + (t + 0.5) * side:.1f}' y='{K * tall + 14:.0f}' text-anchor='middle'>{t + 1}</text>"
        )
    return "".join(out) + "</svg>"
