"""The folder of a run: every round is written whole or not at all, and a damaged file is noticed.

experiment.json   what is run, and its id
rounds.jsonl      one JSON object per round; the same bytes in every run of the experiment on one machine
seconds.jsonl     how long each round took
state-N.bin       the model after round N, with a checksum; the two latest are kept
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from honestly.sim.experiment import Experiment, ExperimentError
from honestly.sim.memory import remembered, with_memory
from honestly.sim.rounds import Record, State
from honestly.sim.train.base import Model

MAGIC = b"honestly state 1 sha256="


class StoreError(OSError):
    """The run's folder cannot be used; the message says why and what to do."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it is either the old one or the new one, whole."""
    handle, name = -1, ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        if name and Path(name).exists():
            Path(name).unlink()
        raise StoreError(_what_to_do(error, path)) from error


def _sync_folder(folder: Path) -> None:
    """A renamed file is safe only when its folder is on disk too (a file system without this is left alone)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _what_to_do(error: OSError, path: Path) -> str:
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write {path}: {why}. Free some space and run the same command again to resume."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"cannot write {path}: {why}. Choose a folder that you may write to."
    return f"cannot write {path}: {why}"


@dataclass
class Store:
    """The folder of one run."""

    folder: Path
    experiment: Experiment
    lines: list[str]
    seconds: list[str]
    warnings: list[str]

    @classmethod
    def open(cls, folder: Path, experiment: Experiment, *, restart: bool = False) -> Store:
        """The run's folder, made if it is missing; a folder of another experiment is refused.

        A run may be prolonged: an experiment that differs in ``rounds`` alone goes on from there.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{folder} is a file: choose another folder with --out") from error
        except OSError as error:
            raise StoreError(_what_to_do(error, folder)) from error
        store = cls(folder, experiment, [], [], [])
        held = store._held()
        if held is not None and not restart:
            store._same(held)
            store._not_longer()
        elif restart:
            for old in (*folder.glob("state-*.bin"), folder / "rounds.jsonl", folder / "seconds.jsonl"):
                old.unlink(missing_ok=True)
        return store

    def _describe(self) -> None:
        e = self.experiment
        described = {"id": e.id, "experiment": e.model_dump(mode="json")}
        text = json.dumps(described, indent=2, sort_keys=True)
        write_atomically(self.folder / "experiment.json", text.encode() + b"\n")

    def _held(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder / "experiment.json").read_text())["experiment"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            self.warnings.append(f"{self.folder / 'experiment.json'} is damaged and will be written again")
            return None

    def _same(self, held: dict[str, Any]) -> None:
        mine = self.experiment.model_dump(mode="json")
        differ = sorted(k for k in {*held, *mine} if k != "rounds" and held.get(k) != mine.get(k))
        if differ:
            changes = ", ".join(f"{k} = {held.get(k)!r} there, {mine.get(k)!r} now" for k in differ)
            raise ExperimentError(
                f"{self.folder} holds another experiment ({changes}): choose another folder with --out, "
                "or add --restart to replace it"
            )

    def _not_longer(self) -> None:
        done, wanted = len(_whole_lines(self.folder / "rounds.jsonl")), self.experiment.rounds
        if done > wanted:  # its numbers are those of the last round there
            raise ExperimentError(
                f"{self.folder} holds {done} rounds of this experiment, more than rounds = {wanted}: choose another "
                "folder with --out, or add --restart to replace it"
            )

    def resume(self, fresh: State) -> State:
        """The latest state that is whole, with the records up to it; ``fresh`` if there is none.

        Whatever was written after that state is dropped: it will be computed again, to the same bits. The folder is
        now the experiment's: one whose model or data cannot even be made leaves no trace in it.
        """
        self._describe()
        lines = _whole_lines(self.folder / "rounds.jsonl")
        for path in sorted(self.folder.glob("state-*.bin"), key=_number, reverse=True):
            try:
                state = read_state(path, fresh)
            except (OSError, ValueError) as error:
                self.warnings.append(f"{path} is damaged ({error}): the state before it is used")
                continue
            if state.round > len(lines):
                self.warnings.append(f"{path}: rounds.jsonl has only {len(lines)} of {state.round} rounds")
                continue
            self.lines = lines[: state.round]
            self.seconds = _whole_lines(self.folder / "seconds.jsonl")[: state.round]
            return state
        return fresh

    def save(self, record: Record, *, keep: int = 2) -> None:
        """Write a round: its record, its times and the state after it."""
        self.lines.append(json.dumps(record.numbers, separators=(",", ":"), allow_nan=False))
        laps = {
            "round": record.state.round,
            "images": record.images,
            **{k: round(v, 6) for k, v in record.seconds.items()},
        }
        self.seconds.append(json.dumps(laps, separators=(",", ":")))
        write_atomically(self.folder / "rounds.jsonl", _joined(self.lines))
        write_atomically(self.folder / "seconds.jsonl", _joined(self.seconds))
        write_state(self.folder / f"state-{record.state.round}.bin", record.state)
        for old in sorted(self.folder.glob("state-*.bin"), key=_number)[:-keep]:
            old.unlink(missing_ok=True)

    def records(self) -> list[dict[str, Any]]:
        """The records so far."""
        return [json.loads(line) for line in self.lines]


def _number(path: Path) -> int:
    digits = path.stem.partition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _joined(lines: Sequence[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def _whole_lines(path: Path) -> list[str]:
    """The lines of a JSON-lines file up to the first that is cut short or damaged."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    whole: list[str] = []
    for line in text.splitlines():
        try:
            if json.loads(line)["round"] != len(whole) + 1:
                break
        except (ValueError, KeyError, TypeError):
            break
        whole.append(line)
    return whole


def write_state(path: Path, state: State) -> None:
    """The model and what the rule remembers, with a checksum in front."""
    buffer = io.BytesIO()
    arrays = {
        "round": np.array(state.round),
        "theta": state.model.theta.cpu().numpy(),
        "statistics": state.model.statistics.cpu().numpy(),
        "counters": state.model.counters.cpu().numpy(),
        **remembered(state),
    }
    np.savez(buffer, allow_pickle=False, **arrays)
    body = buffer.getvalue()
    write_atomically(path, MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def read_state(path: Path, like: State) -> State:
    """The state in a file; ValueError if it is damaged or of another model."""
    arrays = _arrays(path)
    return with_memory(State(int(arrays["round"]), _model(arrays, like.model), like.pipeline), arrays)


def final_model(folder: Path, rounds: int, like: Model) -> Model:
    """The model with which a finished run of that many rounds ended."""
    path = folder / f"state-{rounds}.bin"
    try:
        return _model(_arrays(path), like)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing: it has the model to start from") from error
    except ValueError as error:
        raise StoreError(f"{path} has the model to start from, but {error}") from error


def _arrays(path: Path) -> dict[str, Any]:
    head, _, body = path.read_bytes().partition(b"\n")
    if not head.startswith(MAGIC) or head[len(MAGIC) :] != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("its checksum is wrong")
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        return dict(file)


def _model(arrays: dict[str, Any], like: Model) -> Model:
    def tensor(name: str, old: Tensor) -> Tensor:
        new = torch.from_numpy(arrays[name])
        if new.shape != old.shape:
            raise ValueError(f"{name} has {tuple(new.shape)} numbers, the model has {tuple(old.shape)}")
        return new.to(old.device, old.dtype)

    return Model(*(tensor(n, getattr(like, n)) for n in ("theta", "statistics", "counters")))


def write_updates(folder: Path, round: int, honest: Tensor, reference: Tensor, extra: Mapping[str, Tensor]) -> None:
    """The updates of a round as an .npz file without pickles: ``honest`` (K, d), ``reference`` (d,), poisoned ones."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(_what_to_do(error, folder)) from error
    buffer = io.BytesIO()
    arrays = {name: tensor.cpu().numpy() for name, tensor in extra.items()}
    np.savez(buffer, allow_pickle=False, honest=honest.cpu().numpy(), reference=reference.cpu().numpy(), **arrays)
    write_atomically(folder / f"round-{round:04d}.npz", buffer.getvalue())
