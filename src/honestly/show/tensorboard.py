"""Runs for TensorBoard: one folder of event files per run, with its numbers as scalars and its maps as images."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from honestly.runs.reader import Rounds
from honestly.runs.record import SCALARS
from honestly.show.chart import Grid
from honestly.show.maps import Records, attack_grid, belief_grid
from honestly.show.palette import colours, shade
from honestly.show.pixels import rgb_png
from honestly.show.report.sections import run_label
from honestly.show.report.sources import ReportedRun, ReportedStudy

#: Verdicts by their numbers, and the names of their colours in the stylesheet.
VERDICTS = {
    "believed, honest": "hollow", "accused, attacked": "high", "accused, honest": "low", "believed, attacked": "line4",
    "refused": "muted",
}  # fmt: skip
#: Pixels of a client and a round in an image.
SIDE = 8


def export(studies: Sequence[ReportedStudy], folder: Path) -> list[Path]:
    """Write the runs that have rounds, replace files of an earlier export, and return the paths."""
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    Event: Any = vars(event_pb2)["Event"]  # protobuf creates it at import time: type checkers do not know it
    files: list[Path] = []
    for study in studies:
        for entry in study.entries:
            rounds = entry.read() if entry.rounds else None
            if rounds is None or not rounds.records:
                continue
            path = folder / _folder(entry) / f"events.out.tfevents.0.{entry.id[:12]}"
            path = path.with_name(re.sub(r"[^\w.-]", "-", path.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                writer: Any = RecordWriter(file)
                now = time.time()
                writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
                for step, summary in _summaries(rounds):
                    writer.write(Event(wall_time=now, step=step, summary=summary).SerializeToString())
                writer.flush()
            files.append(path)
    return files


def _folder(entry: ReportedRun) -> str:
    """A run's name as a folder's: letters, digits and dashes, and the beginning of its id, which makes it unique."""
    words = re.sub(r"[^\w.=]+", "-", run_label(entry)).strip("-.")[:100]
    return f"{words}-{re.sub(r'[^0-9A-Za-z]', '', entry.id)[:8]}"


def _summaries(rounds: Rounds) -> list[tuple[int, Any]]:
    """(round, summary): a round's scalars, and the images with the last round."""
    from tensorboard.compat.proto import summary_pb2

    Summary: Any = vars(summary_pb2)["Summary"]
    summaries: list[tuple[int, Any]] = []
    for record in rounds.records:
        numbers = {key: getattr(record, key) for key in SCALARS}
        values = [Summary.Value(tag=key, simple_value=float(v)) for key, v in numbers.items() if v is not None]
        if values:
            summaries.append((record.round, Summary(value=values)))
    images: list[Any] = []
    for tag, grid, colour in _maps(rounds):
        pixels = paint(grid, colour)
        height, width, _ = pixels.shape
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=rgb_png(pixels))
        images.append(Summary.Value(tag=tag, image=image))
    if images:
        summaries.append((rounds.records[-1].round, Summary(value=images)))
    return summaries


def attacked_colour(value: float) -> str:
    """Orange for a client that attacked, pale blue for one that behaved."""
    return shade(0.0 if value > 0.5 else 0.7)


def verdict_grid(records: Records, clients: int) -> Grid | None:
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


def _maps(rounds: Rounds) -> list[tuple[str, Grid, Callable[[float], str]]]:
    K = len(rounds.clients)
    maps: list[tuple[str, Grid, Callable[[float], str]]] = []
    if rounds.known:
        maps.append(("who attacked", attack_grid(rounds.records, K), attacked_colour))
    belief = belief_grid(rounds.records, K)
    if belief is not None:
        maps.append(({"honesty": "probability of being honest", "weights": "weight"}[belief[1]], belief[0], shade))
    verdicts = verdict_grid(rounds.records, K)
    if verdicts is not None:
        names = [colours()[name] for name in VERDICTS.values()]
        maps.append(("accusations", verdicts, lambda v: names[int(v)]))
    return maps


def paint(grid: Grid, colour: Callable[[float], str]) -> npt.NDArray[np.uint8]:
    """(K * 8, rounds * 8, 3) pixels of a heatmap; white where nobody was there."""
    small = np.full((*grid.shape, 3), 255, dtype=np.uint8)
    rounded = np.round(grid, 2)
    for value in np.unique(rounded[np.isfinite(rounded)]):
        small[rounded == value] = list(bytes.fromhex(colour(float(value)).lstrip("#")))
    return small.repeat(SIDE, axis=0).repeat(SIDE, axis=1)
