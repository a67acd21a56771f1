"""A picture of a run like the paper's Figure 1: who attacked, whom the rule believed, and the accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from honestly.sim.experiment import Experiment

Grid = npt.NDArray[np.float64]


def attack_grid(records: Sequence[dict[str, Any]], clients: int) -> Grid:
    """(K, rounds): 1 attacked, 0 behaved, NaN was not there."""
    grid = np.full((clients, len(records)), np.nan)
    for t, record in enumerate(records):
        grid[record["participants"], t] = 0.0
        grid[record["attacked"], t] = 1.0
    return grid


def belief_grid(records: Sequence[dict[str, Any]], clients: int) -> tuple[Grid, str] | None:
    """(K, rounds) honesty, or weights relative to the largest; None if the rule gives neither."""
    for key, label in (("honesty", "probability of being honest"), ("weights", "weight (largest of the round = 1)")):
        if any(r.get(key) is not None for r in records):
            grid = np.full((clients, len(records)), np.nan)
            for t, record in enumerate(records):
                if record.get(key) is not None:
                    grid[:, t] = [np.nan if v is None else v for v in record[key]]
                    if key == "weights":
                        grid[:, t] /= max(np.nanmax(grid[:, t]), 1e-300)
            return grid, label
    return None


def curve(records: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """The rounds in which a number was measured, and the number."""
    pairs = [(int(r["round"]), float(r[key])) for r in records if r.get(key) is not None]
    return [t for t, _ in pairs], [v for _, v in pairs]


def draw(experiment: Experiment, records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the picture; the format follows the file's name (.png, .svg, .pdf)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    K, T = experiment.clients, len(records)
    belief = belief_grid(records, K)
    rows = 3 if belief is not None else 2
    tall = min(3.2, max(1.6, 0.12 * K))
    figure = Figure(figsize=(7.2, tall * (rows - 1) + 2.3), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(rows, 1, sharex=True, height_ratios=[tall] * (rows - 1) + [1.9])
    extent = (0.5, T + 0.5, K - 0.5, -0.5)
    axes[0].imshow(
        attack_grid(records, K), aspect="auto", cmap="Reds", vmin=0, vmax=1.3, extent=extent, interpolation="nearest"
    )
    axes[0].set_title(f"who attacked ({experiment.attack.name})", loc="left", fontsize=9)
    axes[0].set_ylabel("client")
    if belief is not None:
        grid, label = belief
        image = axes[1].imshow(
            grid, aspect="auto", cmap="RdYlGn", vmin=0, vmax=1, extent=extent, interpolation="nearest"
        )
        axes[1].set_title(f"{label} ({experiment.rule.name})", loc="left", fontsize=9)
        axes[1].set_ylabel("client")
        figure.colorbar(image, ax=axes[1], fraction=0.03, pad=0.01)
    axes[-1].plot(*curve(records, "accuracy"), color="tab:blue", label="test accuracy", lw=1.6)
    if any(r.get("asr") is not None for r in records):
        axes[-1].plot(*curve(records, "asr"), color="tab:red", label="attack success rate", lw=1.2, ls="--")
    axes[-1].set(ylim=(0, 1), xlabel="round", xlim=(0.5, T + 0.5))
    axes[-1].grid(alpha=0.3)
    axes[-1].legend(loc="lower right", fontsize=8, frameon=False)
    for axis in axes[:-1]:
        axis.yaxis.get_major_locator().set_params(integer=True)
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path)
