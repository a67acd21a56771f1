"""The progress of a study and its remaining time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from honestly.show.live.model import STATUSES, RunRow

RECENT = 20  # runs per data set from which the speed is estimated


def progress(runs: Sequence[RunRow]) -> dict[str, Any]:
    """Runs by status, finished rounds out of all, and the remaining seconds (None if unknown).

    A remaining round takes as long as other rounds on its data set; as many runs as are running now run side by side.

    >>> runs = [RunRow("a", {}, "done", 10, 10, seconds=2.0), RunRow("b", {}, "running", 5, 10)]
    >>> progress(runs)["left"], progress(runs)["rounds"], progress(runs)["of"]
    (10, 15, 20)
    """
    counts = dict.fromkeys(STATUSES, 0)
    for run in runs:
        counts[run.status] += 1
    return {
        "counts": counts,
        "runs": len(runs),
        "rounds": sum(run.rounds for run in runs),
        "of": sum(run.of or 0 for run in runs) or None,
        "left": _seconds_left(runs, counts["running"]),
    }


def _seconds_left(runs: Sequence[RunRow], workers: int) -> int | None:
    remaining = [run for run in runs if run.status in ("pending", "running") and run.of is not None]
    if not workers or not remaining:
        return None
    known: dict[str, list[float]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.updated or 0.0, reverse=True):
        if run.seconds is not None and run.rounds:
            known[_kind(run)].append(run.seconds)
    if not known:
        return None
    # only recent runs count, since machines change; the median, because an interrupted run includes its pause
    usual = {kind: median(seconds[:RECENT]) for kind, seconds in known.items()}
    anyone = fmean(usual.values())
    each = [((run.of or 0) - run.rounds) * usual.get(_kind(run), anyone) for run in remaining]
    # side by side, but not shorter than the longest single run
    return round(max(sum(each) / workers, max(each)))


def _kind(run: RunRow) -> str:
    return f"{run.cell.get('dataset')}"
