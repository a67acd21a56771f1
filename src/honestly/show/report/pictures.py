"""Charts as files, drawn by matplotlib: PNG for a README, SVG for a paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from honestly.show.figure import save
from honestly.show.svg import Chart, colour_of
from honestly.show.text import shortened

FORMATS = ("png", "svg")


def available() -> bool:
    """Whether matplotlib is installed; without it there are no files, and the pages have their own drawings."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def draw_charts(charts: Sequence[Chart], stem: Path) -> list[Path]:
    """The charts side by side in one picture, in every format; the files."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(2, len(charts))
    down = math.ceil(len(charts) / across)
    figure: Any = Figure(figsize=(4.6 * across, 3.5 * down), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels: list[Any] = list(figure.subplots(down, across, squeeze=False).flat)
    for axis, chart in zip(panels, charts, strict=False):
        _draw(axis, chart)
    for axis in panels[len(charts) :]:
        axis.set_visible(False)
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in FORMATS]
    save(figure, *files)
    return files


def _draw(axis: Any, chart: Chart) -> None:
    for number, line in enumerate(chart.lines):
        colour, dashes = colour_of(number)
        style: Any = (0, tuple(float(d) / 2 for d in dashes.split())) if dashes else "-"
        drawn = {"color": colour, "ls": style, "lw": 1.6, "label": shortened(line.name, 40).replace("$", r"\$")}
        if chart.dots:
            axis.scatter(line.xs, line.ys, s=[6 + 60 * size for size in line.sizes()], color=colour)
        if any(line.spread):
            axis.errorbar(line.xs, line.ys, yerr=line.spread, capsize=2, **drawn)
        else:
            axis.plot(line.xs, line.ys, **drawn)
    if chart.diagonal:
        axis.plot(chart.xlim, chart.ylim, color="0.6", lw=1, ls=":")
    (x0, x1), (y0, y1) = chart.xlim, chart.ylim
    wide, tall = x1 - x0, y1 - y0
    axis.set_xlim(x0 - 0.02 * wide, x1 + 0.02 * wide)
    axis.set_ylim(y0 - 0.02 * tall, y1 + 0.02 * tall)
    axis.set_xlabel(chart.x, fontsize=8)
    axis.set_ylabel(chart.y, fontsize=8)
    axis.set_title(shortened(chart.title, 60), loc="left", fontsize=9, parse_math=False)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    if chart.lines:
        axis.legend(fontsize=7, frameon=False)
