"""How long a study will take: measured on its own finished rounds, else on a few images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from honestly.runs.clean import whole_number
from honestly.runs.record import duration
from honestly.runs.store import PlannedRun, Store
from honestly.sim.data import DATASETS, Dataset, load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation

#: The settings that determine the time of a round on a device.
SHAPE = ("dataset", "model", "clients", "participation", "epochs", "batch", "precision", "crop")
# for calibration: channels and side of the images, and how many there are for training and testing
SIZES = {name: source.size for name, source in DATASETS.items()}


@dataclass(frozen=True)
class TimeEstimate:
    """How long the rest of a study will take.

    Attributes:
        runs, done: how many runs were asked for, and how many of them are done.
        rounds: rounds that are left.
        seconds: their total time, one run at a time.
        measured: runs that are left whose time was measured in this store.
        calibrated: the other runs, whose time was measured on a few images of noise.
    """

    runs: int
    done: int
    rounds: int
    seconds: float
    measured: int
    calibrated: int


def estimate(entries: Sequence[PlannedRun], store: Store | None, device: str) -> TimeEstimate:
    """How long the unfinished runs will take, one after the other on this device."""
    stored = {} if store is None else {run.id: run for run in store.runs()}
    speeds = {} if store is None else median_times(store, device)
    calibrated: dict[str, float] = {}
    rounds, seconds, from_store, left = 0, 0.0, 0, 0
    for entry in entries:
        run = stored.get(entry.id)
        if run is not None and run.status == "done":
            continue
        left += 1
        todo = entry.of - (0 if run is None else whole_number(run.rounds) or 0)
        settings = json.loads(entry.experiment)
        shape = shape_of(settings)
        if shape in speeds:
            from_store += 1
        elif shape not in calibrated:
            calibrated[shape] = calibrate(Experiment.of(settings), device)
        rounds += todo
        seconds += todo * (speeds[shape] if shape in speeds else calibrated[shape])
    return TimeEstimate(len(entries), len(entries) - left, rounds, seconds, from_store, left - from_store)


def shape_of(settings: dict[str, Any]) -> str:
    """The settings that determine the time of a round, as one text."""
    return json.dumps([settings.get(key) for key in SHAPE])


def median_times(store: Store, device: str) -> dict[str, float]:
    """The median time of a round by shape, from the finished runs of this kind of device."""
    kind = device.partition(":")[0]
    times: dict[str, list[float]] = {}
    for run in store.runs():
        if run.status == "done" and str((run.provenance or {}).get("device", "")).startswith(kind):
            laps = [duration(lap) for lap in store.seconds(run.id) if lap]
            times.setdefault(shape_of(run.experiment), []).extend(laps)
    return {shape: median(laps) for shape, laps in times.items() if laps}


def calibrate(experiment: Experiment, device: str, *, enough: float = 0.5) -> float:
    """Seconds of a round of this shape: a short round on images of noise, scaled to the real number.

    The round grows until its training takes ``enough`` seconds or it is a whole round, because the fixed costs of a
    round must not be scaled. Averaging is plain and nobody attacks: training takes nearly all the time.
    """
    e = experiment
    images, tests = numbers(e.dataset)
    share = max(1, images // e.clients)
    # a processor trains clients one after the other, so few show the speed; a GPU trains all at once
    clients = e.participants if device.startswith("cuda") else 1
    size, most = [min(e.batch, share), 1, clients], [share, e.epochs, e.participants]
    data_of_a_round = images * e.epochs * e.participants / e.clients
    while True:
        laps, trained, tested = _short_round(e, device, *size)
        if laps["train"] >= enough or size == most:
            break
        grows = next(i for i in range(3) if size[i] < most[i])
        size[grows] = min(2 * size[grows], most[grows])
    evaluate = laps["evaluate"] / tested * tests / e.evaluate_every
    return laps["train"] / trained * data_of_a_round + evaluate + laps["aggregate"]


def _short_round(
    e: Experiment, device: str, per_client: int, epochs: int, clients: int
) -> tuple[dict[str, float], int, int]:
    """The times of a round of this size, the images trained on and those evaluated."""
    small = Experiment.of(
        {
            **e.model_dump(include={"dataset", "model", "batch", "precision", "crop", "fit", "flip"}),
            "clients": clients, "epochs": epochs, "rounds": 2, "rule": "mean", "partition": "iid",
        }
    )  # fmt: skip
    data = noise_dataset(e.dataset, clients * per_client, min(256, numbers(e.dataset)[1]))
    laps: dict[str, float] = {}
    trained = 1
    for record in Federation(small, data=data, device=device).rounds():
        laps, trained = record.seconds, max(record.images, 1)
        if laps["train"] > 2:  # the first round is a warm-up; a long one is accurate enough
            break
    return laps, trained, len(data.test_labels)


def numbers(name: str) -> tuple[int, int]:
    """How many images for training and for testing a data set has."""
    if name in SIZES:
        return SIZES[name][2:]
    own = _own(name)
    return len(own.labels), len(own.test_labels)


@lru_cache(1)
def _own(name: str) -> Dataset:
    return load(name)


def noise_dataset(name: str, images: int, tests: int) -> Dataset:
    """A data set of noise with the shape of a real one: a calibration must not download anything.

    For a data set of your own, whose shape is unknown, its first images are used.
    """
    if name not in SIZES:
        d = _own(name)
        return replace(
            d, images=d.images[:images], labels=d.labels[:images],
            test_images=d.test_images[:tests], test_labels=d.test_labels[:tests],
        )  # fmt: skip
    channels, side, _, _ = SIZES[name]
    rng = np.random.default_rng(0)

    def noise(n: int) -> Any:
        return rng.integers(0, 256, (n, channels, side, side), dtype=np.uint8)

    def labels(n: int) -> Any:
        return np.arange(n, dtype=np.int64) % 10

    grey = (0.5,) * channels
    names = tuple(map(str, range(10)))
    return Dataset(name, noise(images), labels(images), noise(tests), labels(tests), grey, grey, names)
