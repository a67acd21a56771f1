"""Pictures of a run like the paper's Figure 1: who attacked, whom the rule believed, and the accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from honestly.runs.record import ACCURACY, ASR, RoundRecord
from honestly.show.svg import Grid
from honestly.show.text import shortened

#: The verdicts of `verdict_grid`, by their numbers.
VERDICTS = ("believed, honest", "accused, attacked", "accused, honest", "believed, attacked", "refused")


def attack_grid(records: Sequence[RoundRecord], clients: int) -> Grid:
    """(K, rounds): 1 attacked, 0 behaved, NaN was not there."""
    grid = np.full((clients, len(records)), np.nan)
    for t, record in enumerate(records):
        grid[list(record.participants or ()), t] = 0.0
        grid[list(record.attacked), t] = 1.0
    return grid


def belief_grid(records: Sequence[RoundRecord], clients: int) -> tuple[Grid, str] | None:
    """(K, rounds) honesty, or weights relative to the largest; None if the rule gives neither."""
    for values, label in (
        ([r.honesty for r in records], "probability of being honest"),
        ([r.weights for r in records], "weight (largest of the round = 1)"),
    ):
        if any(row is not None for row in values):
            grid = np.full((clients, len(records)), np.nan)
            for t, row in enumerate(values):
                if row is not None:
                    grid[: len(row), t] = [np.nan if v is None else v for v in row]
                    if label.startswith("weight"):
                        grid[:, t] /= max(np.nanmax(grid[:, t], initial=0.0), 1e-300)
            return grid, label
    return None


def verdict_grid(records: Sequence[RoundRecord], clients: int) -> Grid | None:
    """(K, rounds): the number of the verdict in `VERDICTS`, NaN where nobody was judged; None if nobody ever was."""
    if not any(r.accused is not None or r.excluded for r in records):
        return None
    grid = np.full((clients, len(records)), np.nan)
    for t, record in enumerate(records):
        if record.accused is not None:
            grid[list(record.participants or ()), t] = 0.0
            grid[list(record.attacked), t] = 3.0
            for k in record.accused:
                grid[k, t] = 1.0 if k in record.attacked else 2.0
        grid[list(record.excluded), t] = 4.0
    return grid


def curve(records: Sequence[RoundRecord], key: str) -> tuple[list[int], list[float]]:
    """The rounds in which a number was measured, and the number."""
    pairs = [(r.round, float(getattr(r, key))) for r in records if getattr(r, key) is not None]
    return [t for t, _ in pairs], [v for _, v in pairs]


def draw(records: Sequence[RoundRecord], *paths: Path, clients: int, rule: str = "", attack: str | None = None) -> None:
    """Write the picture; the format follows a file's name (.png, .svg, .pdf). No attack, no map of attackers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    K, T = clients, len(records)
    belief = belief_grid(records, K)
    maps: list[tuple[Grid, str, dict[str, Any]]] = []
    if attack is not None and K:
        maps.append((attack_grid(records, K), f"who attacked ({attack})", {"cmap": "Reds", "vmin": 0, "vmax": 1.3}))
    if belief is not None and K:
        title = f"{belief[1]} ({rule})" if rule else belief[1]
        maps.append((belief[0], title, {"cmap": "RdYlGn", "vmin": 0, "vmax": 1}))
    tall = min(3.2, max(1.6, 0.12 * K))
    figure = Figure(figsize=(7.2, tall * len(maps) + 2.3), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(len(maps) + 1, 1, sharex=True, squeeze=False, height_ratios=[tall] * len(maps) + [1.9])[
        :, 0
    ]
    first = records[0].round if records else 1  # FLARE counts from 0
    span = first - 0.5, first + max(T, 1) - 0.5
    extent = (*span, K - 0.5, -0.5)
    for axis, (grid, title, colours) in zip(axes, maps, strict=False):
        image = axis.imshow(grid, aspect="auto", extent=extent, interpolation="nearest", **colours)
        axis.set_title(shortened(title, 90), loc="left", fontsize=9, parse_math=False)
        axis.set_ylabel("client")
        axis.yaxis.get_major_locator().set_params(integer=True)
        if colours["cmap"] == "RdYlGn":
            figure.colorbar(image, ax=axis, fraction=0.03, pad=0.01)
    axes[-1].plot(*_placed(records, ACCURACY, first), color="tab:blue", label="test accuracy", lw=1.6)
    if any(r.asr is not None for r in records):
        axes[-1].plot(*_placed(records, ASR, first), color="tab:red", label="attack success rate", lw=1.2, ls="--")
    axes[-1].set(ylim=(0, 1), xlabel="round", xlim=span)
    axes[-1].grid(alpha=0.3)
    axes[-1].legend(loc="lower right", fontsize=8, frameon=False)
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    save(figure, *paths)


def _placed(records: Sequence[RoundRecord], key: str, first: int) -> tuple[list[int], list[float]]:
    """A curve whose points stand below the columns of the maps, also where rounds are missing in between."""
    pairs = [(first + t, float(getattr(r, key))) for t, r in enumerate(records) if getattr(r, key) is not None]
    return [x for x, _ in pairs], [v for _, v in pairs]


def save(figure: Any, *paths: Path) -> None:
    """Write a figure without date, version or random ids: the same numbers give the same bytes."""
    import matplotlib as mpl

    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # it is laid out now; doing so again for each file costs as much as all the rest
    for path in paths:
        metadata = {".svg": {"Date": None}, ".png": {"Software": None}}.get(path.suffix)
        with mpl.rc_context({"svg.hashsalt": "honestly", "svg.fonttype": "none"}):
            figure.savefig(path, metadata=metadata)
