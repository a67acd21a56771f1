"""Curves and heatmaps as inline SVG, written by hand: a thousand of them cost seconds, without scripts or fonts.

They take the colour of the text around them, so they read on a light and on a dark page.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from honestly.show.text import for_html, shortened

Grid = npt.NDArray[np.float64]

COLOURS = ("#3b82f6", "#e5484d", "#2f9e58", "#a463f2", "#d97706", "#6b7280", "#0d9aa6", "#c2418c")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
#: Rows of a heatmap that a person can still read; of more clients, those with the lowest values are shown.
MOST_ROWS = 100
WIDTH = 640.0
STYLE = """
svg.d{display:block;width:100%;min-width:30rem;max-width:46rem;height:auto}
svg.d text{font:12px system-ui,sans-serif;fill:currentColor}
.scroll{overflow-x:auto}.scroll:focus-visible{outline:2px solid #3b82f6}
.keys{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.2rem 0 1rem;padding:0;list-style:none;font-size:.9em}
.keys svg{width:2rem;height:.7rem;margin-right:.35rem;vertical-align:middle}
"""


@dataclass(frozen=True)
class Line:
    """A curve; `spread` is the standard deviation at each point, `shares` its share of the data, where known."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    spread: Sequence[float] = ()
    shares: Sequence[float] = ()

    def sizes(self) -> list[float]:
        """Areas of the dots between 0 and 1; they grow with the share of the data."""
        return [share**0.5 for share in self.shares] or [0.25] * len(self.xs)


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis: what is drawn by hand in a page, and by matplotlib in a file."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    xlim: tuple[float, float] = (0.0, 1.0)
    ylim: tuple[float, float] = (0.0, 1.0)
    dots: bool = False
    diagonal: bool = False


def colour_of(number: int) -> tuple[str, str]:
    """Colour and dashes of the n-th curve: told apart without colours, too."""
    return COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]


def scroll(inside: str, label: str) -> str:
    """Something wide in a frame that scrolls by touch and by keyboard, so a phone's page does not."""
    return f"<div class='scroll' tabindex='0' role='region' aria-label='{for_html(label)}'>{inside}</div>"


def chart(what: Chart, *, height: float = 230.0) -> str:
    """The curves, and which is which."""
    left, low, (x0, x1), (y0, y1) = 40.0, 36.0, what.xlim, what.ylim

    def x(v: float) -> float:
        return left + (WIDTH - left - 14) * (v - x0) / ((x1 - x0) or 1.0)

    def y(v: float) -> float:
        return 8 + (height - low - 8) * (1 - (min(max(v, y0), y1) - y0) / ((y1 - y0) or 1.0))

    out = [f"<svg class='d' viewBox='0 0 {WIDTH:g} {height:g}' role='img' aria-label='{for_html(what.title)}'>"]
    for tick in np.linspace(y0, y1, 5):
        out.append(f"<path d='M{left:g} {y(tick):.1f}H{WIDTH - 14:g}' stroke='#8884'/>")
        out.append(f"<text x='{left - 6:g}' y='{y(tick) + 4:.1f}' text-anchor='end'>{tick:.3g}</text>")
    for tick in ticks(x0, x1):
        out.append(f"<text x='{x(tick):.1f}' y='{height - low + 15:g}' text-anchor='middle'>{tick:g}</text>")
    out.append(f"<text x='{(left + WIDTH) / 2:g}' y='{height - 5:g}' text-anchor='middle'>{for_html(what.x)}</text>")
    if what.diagonal:
        out.append(f"<path d='M{x(x0):.1f} {y(y0):.1f}L{x(x1):.1f} {y(y1):.1f}' stroke='#888' stroke-dasharray='2 4'/>")
    keys: list[str] = []
    for number, line in enumerate(what.lines):
        colour, dashes = colour_of(number)
        stroke = f"stroke='{colour}' stroke-width='2.2' stroke-dasharray='{dashes}' fill='none'"
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line.xs, line.ys, strict=True))
        for a, b, s in zip(line.xs, line.ys, line.spread, strict=False):
            if s > 0:
                out.append(
                    f"<path d='M{x(a):.1f} {y(b - s):.1f}V{y(b + s):.1f}' stroke='{colour}' stroke-width='1.2'/>"
                )
        out.append(f"<polyline points='{points}' {stroke}><title>{for_html(line.name)}</title></polyline>")
        if what.dots or len(line.xs) == 1:
            out += [f"<circle cx='{x(a):.1f}' cy='{y(b):.1f}' r='{2 + 6 * size:.1f}' fill='{colour}'/>"
                    for a, b, size in zip(line.xs, line.ys, line.sizes(), strict=True)]  # fmt: skip
        key = f"<svg viewBox='0 0 32 10' aria-hidden='true'><path d='M0 5H32' {stroke}/></svg>"
        keys.append(f"<li>{key}{for_html(line.name)}</li>")
    legend = f"<ul class='keys'>{''.join(keys)}</ul>" if len(keys) > 1 or what.diagonal else ""
    return scroll("".join(out) + "</svg>", what.title) + legend


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers between two bounds.

    >>> ticks(1, 100), ticks(0, 0.4)
    ([1.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.0, 0.1, 0.2, 0.3, 0.4])
    """
    wide = (high - low) or 1.0
    size = 10.0 ** np.floor(np.log10(wide / most))
    step = next(size * m for m in (1, 2, 5, 10) if wide / (size * m) <= most)
    inner = np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step
    found = [float(f"{v:.10g}") + 0.0 for v in inner]
    if not found or found[0] - low > 0.4 * step:
        found.insert(0, float(low))
    return found


def shown_rows(grid: Grid) -> list[int]:
    """The rows of a heatmap that are drawn: all, or those with the lowest means."""
    if len(grid) <= MOST_ROWS:
        return list(range(len(grid)))
    known = np.isfinite(grid)
    means = np.where(known, grid, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return sorted(np.argsort(np.where(known.any(axis=1), means, np.inf), kind="stable")[:MOST_ROWS].tolist())


def heat(
    grid: Grid,
    colour: Callable[[float], str],
    *,
    label: str,
    clients: Sequence[str],
    rounds: Sequence[int],
    word: Callable[[float], str] = "{:.3g}".format,
) -> str:
    """Clients by rounds; equal neighbours in a row are one rectangle, which says what it is when pointed at."""
    kept = shown_rows(grid)
    K, T = len(kept), grid.shape[1]
    names = [shortened(clients[k], 14) for k in kept]
    left = 12.0 + 8.2 * max((len(name) for name in names), default=1)
    tall = 16.0 if K <= 12 else 12.0 if K <= 40 else 8.0
    wide = (WIDTH - left - 14) / max(T, 1)
    out = [
        f"<svg class='d' viewBox='0 0 {WIDTH:g} {K * tall + 20:g}' role='img' aria-label='{for_html(label)}'>",
        f"<g shape-rendering='crispEdges' transform='translate({left:g}) scale({wide:.5g} {tall:g})'>",
    ]
    for i, k in enumerate(kept):
        for start, end, value in _stretches(grid[k]):
            when = f"round {rounds[start]}" if end - start == 1 else f"rounds {rounds[start]}–{rounds[end - 1]}"
            title = f"client {for_html(clients[k])}, {when}: {word(value)}"
            out.append(
                f"<rect x='{start}' y='{i}' width='{end - start}' height='.92' fill='{colour(value)}'>"
                f"<title>{title}</title></rect>"
            )
    out.append("</g>")
    every = max(1, -(-K // 20)) if tall >= 12 else max(2, -(-K // 20))
    for i in range(0, K, every):
        name = f"<title>{for_html(clients[kept[i]])}</title>{for_html(names[i])}"
        out.append(f"<text x='{left - 5:g}' y='{(i + 0.5) * tall + 4:.1f}' text-anchor='end'>{name}</text>")
    column = {number: t for t, number in enumerate(rounds)}
    for number in ticks(rounds[0], rounds[-1]) if T else ():
        if number in column:
            x = left + (column[int(number)] + 0.5) * wide
            out.append(f"<text x='{x:.1f}' y='{K * tall + 14:g}' text-anchor='middle'>{number:g}</text>")
    note = f"<p>{K} of {len(grid)} clients: those with the lowest values.</p>" if len(grid) > K else ""
    return scroll("".join(out) + "</svg>", label) + note


def _stretches(row: Grid) -> list[tuple[int, int, float]]:
    """(start, end, value) of the stretches of a row with the same value to two decimals; NaN is left out."""
    rounded = np.where(np.isnan(row), -1.0, np.round(row, 2))
    edges = [0, *(np.flatnonzero(np.diff(rounded)) + 1).tolist(), len(row)]
    return [(a, b, float(rounded[a])) for a, b in itertools.pairwise(edges) if b > a and not np.isnan(row[a])]


def red(value: float) -> str:
    """Dark red from one half on."""
    return "#b3122a" if value > 0.5 else "#f3e3e0"


def red_to_green(value: float) -> str:
    """Red at 0, yellow at one half, green at 1."""
    stops = ((197, 48, 48), (245, 222, 120), (46, 140, 87))
    at = min(max(value, 0.0), 1.0) * 2
    i = min(int(at), 1)
    mixed = (round(a + (at - i) * (b - a)) for a, b in zip(stops[i], stops[i + 1], strict=True))
    return "#" + "".join(f"{c:02x}" for c in mixed)
