"""The state of a run as arrays and back, and the state from which an interrupted run continues."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from honestly.files import check_regular
from honestly.runs.database import StoreError
from honestly.runs.folder import EXPERIMENT, ROUNDS, JsonLines, RunFolder, read_description
from honestly.runs.record import RoundRecord
from honestly.runs.sink import RoundSink
from honestly.runs.states import States, pack, unpack
from honestly.runs.writing import remedies, write_file
from honestly.sim.experiment import Experiment, ExperimentError
from honestly.sim.memory import memory_arrays, with_memory
from honestly.sim.state import State
from honestly.sim.train.trainer import Model

Warn = Callable[[str], None]
ROWS = ("theta", "statistics", "counters")  # of a model


def open_folder(folder: Path, experiment: Experiment, *, restart: bool = False, warn: Warn) -> RunFolder:
    """Open the folder of a run, or make it. Raises ExperimentError if it holds another experiment, or may do so.

    A run can be extended: an experiment that differs only in ``rounds`` continues it. With ``restart`` the folder may
    hold anything; it is the caller who clears it.
    """
    with remedies(folder):
        folder.mkdir(parents=True, exist_ok=True)
    described = experiment.model_dump(mode="json")
    run = RunFolder(folder, experiment.id, described)
    if restart:
        return run
    if (stored := _stored_settings(folder / EXPERIMENT, warn)) is not None:
        _check_same(folder, stored, described)
        _check_not_longer(folder, experiment.rounds)
    elif (rounds := len(run.rounds.read())) > 0:  # of a damaged run, or of a federation's history
        raise ExperimentError(
            f"{folder} holds {rounds} rounds, but no {EXPERIMENT} that says which experiment they are from: "
            "choose another folder with --out, or add --restart to replace them"
        )
    return run


def _stored_settings(path: Path, warn: Warn) -> dict[str, Any] | None:
    try:
        check_regular(path)
        return read_description(path.read_text(encoding="utf-8"))[1]
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        warn(f"{path} is damaged")
        return None


def _check_same(folder: Path, stored: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    differ = sorted(k for k in {*stored, *mine} if k != "rounds" and stored.get(k) != mine.get(k))
    if differ:
        changes = ", ".join(f"{k} = {stored.get(k)!r} there, {mine.get(k)!r} now" for k in differ)
        raise ExperimentError(
            f"{folder} holds another experiment ({changes}): choose another folder with --out, "
            "or add --restart to replace it"
        )


def _check_not_longer(folder: Path, wanted: int) -> None:
    done = len(JsonLines(folder / ROUNDS).read())
    if done > wanted:  # its numbers are those of the last round there
        raise ExperimentError(
            f"{folder} holds {done} rounds of this experiment, more than rounds = {wanted}: choose another "
            "folder with --out, or add --restart to replace it"
        )


def resume(sink: RoundSink, fresh: State, experiment: Experiment, warn: Warn) -> tuple[State, list[RoundRecord]]:
    """The latest undamaged state and the rounds up to it; ``fresh`` if there is none.

    Everything written after that state is dropped and computed again, with the same bits.
    """
    records = sink.records()
    if records and records[-1].accuracy is not None and not experiment.evaluates(len(records)):
        records = _without_last(sink, records)
    state = latest_state(sink.states, fresh, len(records), warn) if sink.states is not None else fresh
    sink.keep(state.round)
    return state, records[: state.round]


def _without_last(sink: RoundSink, records: list[RoundRecord]) -> list[RoundRecord]:
    """The rounds of a shorter run without its last one, which was evaluated only because it was the last.

    It is done again, unless the state before it is missing.
    """
    last = len(records)
    if sink.states is None or (last > 1 and not sink.states.path(last - 1).exists()):
        return records
    sink.states.path(last).unlink(missing_ok=True)
    return records[:-1]


def latest_state(states: States, fresh: State, rounds: int, warn: Warn) -> State:
    """The latest undamaged state that is not ahead of ``rounds``; ``fresh`` if there is none."""
    for number in states.rounds():
        path = states.path(number)
        try:
            state = read_state(path, fresh)
            if state.round != number:
                raise ValueError(f"it is the state after round {state.round}")
        except (OSError, ValueError) as error:
            warn(f"{path} is damaged ({error}): the state before it is used")
            continue
        if state.round <= rounds:
            return state
        warn(f"{path} is ahead of the {rounds} rounds that were written down: the state before it is used")
    return fresh


def pack_state(state: State) -> bytes:
    """The model and what the rule remembers, as a file for `States`."""
    return pack(
        {
            "round": np.array(state.round),
            "theta": state.model.theta.cpu().numpy(),
            "statistics": state.model.statistics.cpu().numpy(),
            "counters": state.model.counters.cpu().numpy(),
            **{f"past/{i}/{n}": getattr(m, n).cpu().numpy() for i, m in enumerate(state.past) for n in ROWS},
            **memory_arrays(state),
        }
    )


def read_state(path: Path, like: State) -> State:
    """The state in a file; ValueError if it is damaged or of another model. It may come from a stranger's archive."""
    arrays = unpack(path)
    model = _model(arrays, like.model)
    try:
        late = sum(name.startswith("past/") for name in arrays) // len(ROWS)
        past = tuple(_model({n: arrays[f"past/{i}/{n}"] for n in ROWS}, like.model) for i in range(late))
        return with_memory(State(int(arrays["round"]), model, like.pipeline, past, like.server), arrays)
    except (KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise ValueError(f"it is not a state of this run ({type(error).__name__}: {error})") from error


def final_model(folder: Path, rounds: int, like: Model) -> Model:
    """The final model of a finished run with this many rounds."""
    path = States(folder).path(rounds)
    try:
        return _model(unpack(path), like)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing, and with it the model to start from") from error
    except ValueError as error:
        raise StoreError(f"{path}, which has the model to start from, cannot be used: {error}") from error


def _model(arrays: dict[str, Any], like: Model) -> Model:
    def tensor(name: str, old: Tensor) -> Tensor:
        if name not in arrays or arrays[name].dtype.kind not in "fiu":
            raise ValueError(f"it has no numbers {name!r}")
        new = torch.from_numpy(arrays[name])
        if new.shape != old.shape:
            raise ValueError(f"{name} has {tuple(new.shape)} numbers, the model has {tuple(old.shape)}")
        return new.to(old.device, old.dtype)

    return Model(*(tensor(n, getattr(like, n)) for n in ROWS))


def write_updates(folder: Path, round: int, honest: Tensor, reference: Tensor, extra: Mapping[str, Tensor]) -> None:
    """The updates of a round as an .npz file without pickles: ``honest`` (K, d), ``reference`` (d,), poisoned ones."""
    with remedies(folder):
        folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    arrays = {name: tensor.cpu().numpy() for name, tensor in extra.items()}
    np.savez(buffer, allow_pickle=False, honest=honest.cpu().numpy(), reference=reference.cpu().numpy(), **arrays)
    write_file(folder / f"round-{round:04d}.npz", buffer.getvalue())
