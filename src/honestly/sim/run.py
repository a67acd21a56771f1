"""A run from start to end: rounds, the folder they are written to, and a clean stop on Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from honestly.runs.database import StoreError
from honestly.runs.folder import RunFolder
from honestly.runs.record import RoundRecord
from honestly.runs.sink import RoundSink, UnsavedRounds
from honestly.sim.checkpoint import final_model, open_folder, pack_state, resume
from honestly.sim.data import Dataset
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation
from honestly.sim.settings import doubts
from honestly.sim.state import Record
from honestly.sim.train.trainer import Model


@dataclass(frozen=True)
class Outcome:
    """The rounds of a run; ``finished`` is False if it was stopped before its last round."""

    experiment: Experiment
    rounds: list[RoundRecord]
    finished: bool
    resumed_at: int = 0

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rounds as plain values, as in the lines of ``rounds.jsonl``."""
        return [one.as_json() for one in self.rounds]


class Stop:
    """Turn Ctrl-C and SIGTERM into a flag; a second signal interrupts at once."""

    def __init__(self) -> None:
        self.requested = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __enter__(self) -> Stop:
        self.before: dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.before[number] = signal.signal(number, self._ask)
            except ValueError:  # not the main thread, which alone can handle signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def run(
    experiment: Experiment,
    out: Path | None = None,
    *,
    sink: RoundSink | None = None,
    data: Dataset | None = None,
    folder: Path | str | None = None,
    device: str = "cpu",
    record: Path | None = None,
    restart: bool = False,
    warm_up: Path | None = None,
    on_start: Callable[[Federation, list[RoundRecord]], None] | None = None,
    on_round: Callable[[Record], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Outcome:
    """Run an experiment to its end, or continue where an earlier run of it stopped.

    Args:
        experiment: what to run.
        out: the run's folder; None keeps everything in memory.
        sink: where the rounds go instead of a folder, such as a study's store.
        data, folder: the data set, or where it is.
        device: "cpu" or "cuda".
        record: a folder for the honest updates of every round.
        restart: delete what the folder holds.
        warm_up: the folder of the run that this one starts from, if it has one; done first if it is not finished
            (default: ``warm-up`` in the run's folder).
        on_start, on_round, on_warning: called with what there is to show.
    """
    warn = on_warning or _ignore
    if sink is None:  # a cell of a study may well have an attack without attackers
        for doubt in doubts(experiment):
            (on_warning or _warn)(doubt)
        sink = UnsavedRounds() if out is None else open_folder(out, experiment, restart=restart, warn=warn)
    federation = Federation(experiment, data=data, folder=folder, device=device, record=record)
    if restart and isinstance(sink, RunFolder):  # not before: a mistake in the data or the model must cost no rounds
        sink.clear()
    state, rounds = resume(sink, federation.start(), experiment, warn)
    resumed_at = state.round
    before = experiment.before
    if before is not None and state.round == 0:
        model = _warm_up(before, out, warm_up, federation, state.model, device, restart, warn)
        if model is None:
            return Outcome(experiment, [], False)
        state = replace(state, model=model)
    if on_start is not None:
        on_start(federation, rounds)
    with Stop() as stop:
        for latest in federation.rounds(state):
            sink.add(latest.found, latest.laps)
            if sink.states is not None:
                sink.states.write(latest.state.round, pack_state(latest.state))
            rounds.append(latest.found)
            if on_round is not None:
                on_round(latest)
            if stop.requested:
                break
    return Outcome(experiment, rounds, len(rounds) >= experiment.rounds, resumed_at)


def _warm_up(
    before: Experiment, out: Path | None, shared: Path | None, federation: Federation, like: Model, device: str,
    restart: bool, warn: Callable[[str], None],
) -> Model | None:  # fmt: skip
    """The final model of the warm-up; None if the warm-up was stopped."""
    if shared is not None:
        with contextlib.suppress(StoreError):  # a study does a warm-up once and keeps only its last state
            return final_model(shared, before.rounds, like)
    with TemporaryDirectory() as nowhere:
        where = shared or (Path(nowhere) if out is None else out / "warm-up")
        outcome = run(
            before, where, data=federation.data, device=device, restart=restart and shared is None, on_warning=warn
        )
        return final_model(where, before.rounds, like) if outcome.finished else None


def _warn(text: str) -> None:
    """Warn the caller of `run`."""
    warnings.warn(text, stacklevel=3)


def _ignore(text: str) -> None:
    """Do nothing."""
