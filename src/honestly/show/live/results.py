"""The results of all runs as one drawing, for a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from honestly.show import svg
from honestly.show.live.model import RunRow
from honestly.show.report.generic import accuracy_map

#: Maps with more columns are drawn with rows and columns exchanged, because a page of paper is taller than wide.
MOST_COLUMNS = 12


def results_svg(runs: Iterable[RunRow]) -> str:
    """Rules by settings, the latest accuracy of every run, as an SVG file; "" if no run has an accuracy yet."""
    started = [run for run in runs if run.accuracy is not None]
    if not started:
        return ""
    heatmap = accuracy_map([({"rule": "any rule", **_plain(run.cell)}, run.accuracy) for run in started])
    return svg.standalone([heatmap.transpose() if len(heatmap.columns) > MOST_COLUMNS else heatmap])


def _plain(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell whose values can be compared: a folder of runs may hold anything."""
    return {axis: value if isinstance(value, int | float) else str(value) for axis, value in cell.items()}
