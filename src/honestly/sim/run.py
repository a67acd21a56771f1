"""A run from start to end: rounds, the folder they are written to, and a clean stop on Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from honestly.sim.checkpoint import Store, final_model
from honestly.sim.data import Dataset
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation, Record


@dataclass(frozen=True)
class Outcome:
    """The records of a run; ``finished`` is False if it was stopped before its last round."""

    experiment: Experiment
    records: list[dict[str, Any]]
    seconds: list[str]
    finished: bool
    resumed_at: int = 0


class Stop:
    """Turn Ctrl-C and SIGTERM into a flag; a second signal interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __enter__(self) -> Stop:
        self.before: dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.before[number] = signal.signal(number, self._ask)
            except ValueError:  # not the main thread: whoever owns the signals decides
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def run(
    experiment: Experiment,
    out: Path | None = None,
    *,
    data: Dataset | None = None,
    folder: Path | str | None = None,
    device: str = "cpu",
    record: Path | None = None,
    restart: bool = False,
    warm_up: Path | None = None,
    on_start: Callable[[Federation, list[dict[str, Any]]], None] | None = None,
    on_round: Callable[[Record], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Outcome:
    """Run an experiment to its end, or go on where an earlier run of it stopped.

    Args:
        experiment: what to run.
        out: the run's folder; None keeps everything in memory.
        data, folder: the data set, or where it is.
        device: "cpu" or "cuda".
        record: a folder for the honest updates of every round.
        restart: forget what the folder holds.
        warm_up: the folder of the run that this one starts from, if it has one; done first if it is not finished
            (default: ``warm-up`` in the run's folder).
        on_start, on_round, on_warning: called with what there is to show.
    """
    store = None if out is None else Store.open(out, experiment, restart=restart)
    federation = Federation(experiment, data=data, folder=folder, device=device, record=record)
    state = federation.start()
    records: list[dict[str, Any]] = []
    if store is not None:
        state = store.resume(state)
        records = store.records()
        for warning in store.warnings:
            if on_warning is not None:
                on_warning(warning)
    resumed_at = state.round
    before = experiment.before
    if before is not None and state.round == 0:
        with TemporaryDirectory() as nowhere:
            where = warm_up or (Path(nowhere) if out is None else out / "warm-up")
            found = run(
                before, where, data=federation.data, device=device, restart=restart and warm_up is None,
                on_warning=on_warning,
            )  # fmt: skip
            if not found.finished:
                return Outcome(experiment, [], [], False)
            state = replace(state, model=final_model(where, before.rounds, state.model))
    if on_start is not None:
        on_start(federation, records)
    with Stop() as stop:
        for found in federation.rounds(state):
            if store is not None:
                store.save(found)
            records.append(found.numbers)
            if on_round is not None:
                on_round(found)
            if stop.asked:
                break
    seconds = [] if store is None else store.seconds
    return Outcome(experiment, records, seconds, len(records) >= experiment.rounds, resumed_at)
