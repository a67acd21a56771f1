"""The same drawings as files, by matplotlib: PNG for a README, SVG for a paper."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from honestly.runs.record import ACCURACY, ASR, RoundRecord
from honestly.runs.writing import remedies
from honestly.show.chart import DOT, RING, Chart, Heatmap, dashes
from honestly.show.maps import belief_map, belief_of, key_words, truth_map, weight_map
from honestly.show.palette import colours, line_colour
from honestly.show.text import shorten

FORMATS = ("png", "svg")
#: The most columns of a map in a file that leave room for marks; pages can be made larger.
MOST_MARKED = 60


def available() -> bool:
    """Whether matplotlib is installed. Without it, no picture files are written; pages contain SVG drawings anyway."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def run_figure(records: Sequence[RoundRecord], *, clients: int, rule: str = "", attack: str | None = None) -> Any:
    """Who attacked, which clients the rule believed, and the accuracy, like the paper's Figure 1.

    Without `attack`, there is no map of the attackers.
    """
    names = [str(k) for k in range(clients)]
    panels = [
        (truth_map(records, names) if attack is not None and clients else None, attack or ""),
        (belief_map(records, names) if clients else None, rule),
        (weight_map(records, names) if clients else None, ""),
    ]
    maps = [(one, f"{one.title} ({word})" if word else one.title) for one, word in panels if one is not None]
    tall = min(3.2, max(1.6, 0.12 * clients))
    figure = _figure(7.2, tall * len(maps) + 2.3)
    ratios = [tall] * len(maps) + [1.9]
    axes: Any = figure.subplots(len(maps) + 1, 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    first = records[0].round if records else 1  # FLARE counts from 0
    span = first - 0.5, first + max(len(records), 1) - 0.5
    for axis, (one, title) in zip(axes, maps, strict=False):
        draw_heatmap(axis, one, title, extent=(*span, clients - 0.5, -0.5))
        axis.yaxis.get_major_locator().set_params(integer=True)
    measures = [(ACCURACY, "test accuracy", 0), (ASR, "attack success rate", 1)]
    for key, label, number in measures:
        if key == ACCURACY or any(getattr(r, key) is not None for r in records):
            axes[-1].plot(*_place_points(records, key, first), label=label, lw=1.6, **_line_style(number))
    axes[-1].set(ylim=(0, 1), xlabel="round", xlim=span)
    axes[-1].grid(alpha=0.3)
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}  # inside, a curve may cross it
    axes[-1].legend(**above, ncols=2, fontsize=8, frameon=False)
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    if maps:
        drawn = [one for one, _ in maps]
        _draw_key(figure, drawn, key_words(drawn, belief_of(records)))
    return figure


def draw_heatmap(axis: Any, what: Heatmap, title: str, **placed: Any) -> Any:
    """A heatmap in a panel, in the pages' colours and with their marks."""
    from matplotlib.colors import LinearSegmentedColormap

    c = colours()
    scale = LinearSegmentedColormap.from_list("honestly", [c["low"], c["middle"], c["high"]])
    scale = scale.with_extremes(bad=c["hollow"])
    image = axis.imshow(what.values, aspect="auto", interpolation="nearest", cmap=scale, vmin=0, vmax=1, **placed)
    axis.set_title(shorten(title, 90), loc="left", fontsize=9, parse_math=False)
    axis.set_ylabel(what.y)
    left, right = image.get_extent()[:2]
    T = max(len(what.columns), 1)
    if what.marks is not None and T <= MOST_MARKED:
        for kind, strong in product((DOT, RING), (True, False)):
            ks, ts = np.nonzero((what.marks == kind) & (what.strong == strong))
            xs = left + (ts + 0.5) * (right - left) / T
            ink = "white" if strong else "black"
            axis.scatter(xs, ks, s=5, facecolors=ink if kind == DOT else "none", edgecolors=ink, linewidths=0.6)
    return image


def _draw_key(figure: Any, maps: Sequence[Heatmap], words: tuple[str, str], dot: str = "accused") -> None:
    """What the colours and marks of the maps mean, above them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    key: list[Any] = [Patch(color=colours()[end], label=word) for end, word in zip(("low", "high"), words, strict=True)]
    for kind, word, fill in ((DOT, dot, "black"), (RING, "excluded", "none")):
        if any(one.has_marks(kind) and len(one.columns) <= MOST_MARKED for one in maps):
            key.append(Line2D([], [], ls="", marker="o", ms=3, mfc=fill, mec="black", mew=0.6, label=word))
    inches = sum(0.6 + 0.08 * len(one.get_label()) for one in key)
    columns = len(key) if inches < figure.get_figwidth() else 1
    figure.legend(handles=key, loc="outside upper left", ncols=columns, fontsize=8, frameon=False)


def heatmaps_png(maps: Sequence[Heatmap], words: tuple[str, str], dot: str = "") -> bytes:
    """Heatmaps of the same rows and columns below each other, with all their names, as a PNG file.

    Args:
        maps: the heatmaps.
        words: what orange and blue mean.
        dot: what a dot means.
    """
    K, T = maps[0].values.shape
    rows, names = ([shorten(name, most) for name in of] for of, most in ((maps[0].rows, 40), (maps[-1].columns, 44)))
    beside, below = (0.07 * max(map(len, some), default=0) for some in (rows, names))  # inches
    figure = _figure(
        min(14.0, max(3.0, 1.5 + beside) + 0.25 * T), len(maps) * min(14.0, 0.8 + 0.2 * K) + max(1.5, 1.2 + below)
    )
    axes: Any = figure.subplots(len(maps), 1, squeeze=False, sharex=True)[:, 0]
    for axis, what in zip(axes, maps, strict=True):
        draw_heatmap(axis, what, what.title)
        axis.set_yticks(range(K), rows, fontsize=7, parse_math=False)
    axes[-1].set_xticks(range(T), names, fontsize=7, rotation=90, parse_math=False)
    axes[-1].set_xlabel(maps[-1].x)
    _draw_key(figure, maps, words, dot)
    return png(figure)


def draw_charts(charts: Sequence[Chart], stem: Path) -> list[Path]:
    """The charts side by side in one picture, in every format; the files."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in FORMATS]
    save(chart_figure(charts), *files)
    return files


def chart_figure(charts: Sequence[Chart]) -> Any:
    """The charts side by side."""
    across = min(2, len(charts))
    down = math.ceil(len(charts) / across)
    figure = _figure(4.6 * across, 3.5 * down)
    panels: list[Any] = list(figure.subplots(down, across, squeeze=False).flat)
    for axis, chart in zip(panels, charts, strict=False):
        _draw(axis, chart)
    for axis in panels[len(charts) :]:
        axis.set_visible(False)
    return figure


def _figure(wide: float, tall: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(wide, tall), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _line_style(number: int) -> dict[str, Any]:
    dash = dashes(number)
    return {"color": line_colour(number), "ls": (0, tuple(float(d) / 2 for d in dash.split())) if dash else "-"}


def _draw(axis: Any, chart: Chart) -> None:
    for number, line in chart.numbered():
        style = {**_line_style(number), "lw": 1.6, "label": shorten(line.name, 40).replace("$", r"\$")}
        if chart.dots:
            axis.scatter(line.xs, line.ys, s=[6 + 60 * size for size in line.sizes()], color=style["color"])
        if any(line.spread):
            axis.errorbar(line.xs, line.ys, yerr=line.spread, capsize=2, **style)
        else:
            axis.plot(line.xs, line.ys, **style)
    if chart.diagonal:
        axis.plot(chart.xlim, chart.ylim, color="0.6", lw=1, ls=":")
    (x0, x1), (y0, y1) = chart.xlim, chart.ylim
    wide, tall = x1 - x0, y1 - y0
    axis.set_xlim(x0 - 0.02 * wide, x1 + 0.02 * wide)
    axis.set_ylim(y0 - 0.02 * tall, y1 + 0.02 * tall)
    axis.set_xlabel(chart.x, fontsize=8)
    axis.set_ylabel(chart.y, fontsize=8)
    axis.set_title(shorten(chart.title, 60), loc="left", fontsize=9, parse_math=False)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    if chart.lines:
        axis.legend(fontsize=7, frameon=False)


def _place_points(records: Sequence[RoundRecord], key: str, first: int) -> tuple[list[int], list[float]]:
    """A curve whose points are aligned with the columns of the maps, even if rounds are missing."""
    pairs = [(first + t, float(getattr(r, key))) for t, r in enumerate(records) if getattr(r, key) is not None]
    return [x for x, _ in pairs], [v for _, v in pairs]


def save(figure: Any, *paths: Path) -> None:
    """Write a figure without date, version or random ids: the same numbers give the same bytes."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is done; repeating it for each file would double the time
    for path in paths:
        with remedies(path):
            _write(figure, path, path.suffix[1:])


def png(figure: Any) -> bytes:
    """A figure as the bytes of a PNG file."""
    out = io.BytesIO()
    _write(figure, out, "png")
    return out.getvalue()


def _write(figure: Any, to: Any, kind: str) -> None:
    import matplotlib as mpl

    metadata = {"svg": {"Date": None}, "png": {"Software": None}}.get(kind)
    with mpl.rc_context({"svg.hashsalt": "honestly", "svg.fonttype": "none"}):
        figure.savefig(to, format=kind, metadata=metadata)
