"""Runs that are killed (SIGKILL) at a chosen moment: one process for each word of the command line.

python kill_at.py FOLDER SETTINGS POINT...   leaves FOLDER/POINT, a run's folder or, for `study-...`, a study

A process is forked before PyTorch has computed anything, so no thread is lost.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from honestly.runs import folder, rows, sink, states, store
from honestly.sim.experiment import Experiment
from honestly.sim.run import run
from honestly.studies.work import WorkOptions, one_by_one

ROUND = 3


def die() -> None:
    """Kill this process at once, without any cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)


def at(call: int, act: Callable[..., None], real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so `act` runs before the given call."""
    calls = 0

    def wrapped(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            act(real, *args, **options)
        return real(*args, **options)

    return wrapped


def before(real: Callable[..., Any], *args: Any, **options: Any) -> None:
    die()


def after(real: Callable[..., Any], *args: Any, **options: Any) -> None:
    real(*args, **options)
    die()


def half_a_line(real: Callable[..., Any], path: Path, content: bytes) -> None:
    real(path, content[: len(content) // 2])
    die()


def half_a_file(real: Callable[..., Any], path: Path, content: bytes) -> None:
    path.with_name(f".{path.name}.half").write_bytes(content[: len(content) // 2])
    die()


#: What is replaced, at which call, by what.
POINTS: dict[str, tuple[Any, str, int, Callable[..., None]]] = {
    "half-a-record": (folder, "append", 2 * ROUND - 1, half_a_line),
    "no-seconds": (folder, "append", 2 * ROUND - 1, after),
    "half-the-seconds": (folder, "append", 2 * ROUND, half_a_line),
    "no-state": (states.States, "write", ROUND, before),
    "half-a-state": (states, "write_file", ROUND, half_a_file),
    "states-not-forgotten": (states, "write_file", ROUND, after),
    "first-round": (states.States, "write", 1, before),
    "study-no-record": (sink.StoreSink, "add", ROUND, before),
    "study-within-the-transaction": (store, "insert_rounds", ROUND, after),
    "study-no-state": (states.States, "write", ROUND, before),
    "study-half-a-state": (states, "write_file", ROUND, half_a_file),
    "study-state": (states, "write_file", ROUND, after),
    "study-not-finished": (store.Store, "finish", 1, before),
    "study-not-forgotten": (store.Store, "finish", 1, after),
}


def child(where: Path, settings: dict[str, Any], point: str) -> None:
    """Run until the point is reached."""
    import torch

    torch.set_num_threads(1)
    owner, name, call, act = POINTS[point]
    setattr(owner, name, at(call, act, getattr(owner, name)))
    experiment = Experiment.of(settings)
    if not point.startswith("study-"):
        run(experiment, where)
        return
    with store.Store.open(where) as study:
        study.add([rows.PlannedRun(experiment.id, {"seed": experiment.seed}, experiment.canonical, experiment.rounds)])
        one_by_one(study, {experiment.id}, "w", WorkOptions())


def main() -> None:
    """All points, one after the other."""
    where, settings, *points = sys.argv[1:]
    for point in points:
        process = os.fork()
        if not process:
            child(Path(where) / point, json.loads(settings), point)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        assert os.WIFSIGNALED(status), f"{point}: it was never reached"
        assert os.WTERMSIG(status) == signal.SIGKILL, point


if __name__ == "__main__":
    main()
