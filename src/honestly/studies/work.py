"""One worker: it claims runs, does them one after the other, and sends heartbeats."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from honestly.runs.provenance import provenance
from honestly.runs.sink import StoreSink
from honestly.runs.store import LEASE, LostClaimError, Run, Store, StoreError
from honestly.sim.data import Dataset, load
from honestly.sim.experiment import Experiment
from honestly.sim.run import run as simulate
from honestly.sim.state import Record
from honestly.sim.summary import summary
from honestly.studies.limit import OutOfTimeError, TimeLimit


class StoppedError(Exception):
    """The worker was asked to stop; the round that just ended is saved."""


@dataclass(frozen=True)
class WorkOptions:
    """How runs are done.

    Attributes:
        device: "cpu", "cuda" or "cuda:1".
        data: where the data sets are.
        keep_models: keep the final model of every run, not only those that others start from.
        halt: asked after each round whether to stop.
        ends: the time (seconds since 1970) by which every worker must have ended; None for no limit.
    """

    device: str = "cpu"
    data: Path | None = None
    keep_models: bool = False
    halt: Callable[[], bool] | None = None
    ends: float | None = None


class Datasets:
    """Data sets, each read once, whichever thread asks first."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.datasets: dict[str, Dataset] = {}
        self.lock = threading.Lock()

    def get(self, name: str) -> Dataset:
        """The data set of that name."""
        with self.lock:
            if name not in self.datasets:
                self.datasets[name] = load(name, self.folder)
            return self.datasets[name]


def work(
    store: Store, run: Run, *, worker: str, options: WorkOptions, data: Datasets | None = None,
    limit: TimeLimit | None = None,
) -> bool:  # fmt: skip
    """Do one claimed run: continue from its latest state, and write every round and its end to the store.

    A run that raises an error is stored as failed, and the study continues. Raises OutOfTimeError if the next round
    would not end within the ``limit``.

    Returns:
        False if it was asked to stop before the end.
    """
    try:
        experiment = Experiment.of(run.experiment)
        before = experiment.before

        def after_round(record: Record) -> None:
            if options.halt is not None and options.halt():
                raise StoppedError
            if limit is not None and record.state.round < experiment.rounds:
                limit.check()

        outcome = simulate(
            experiment, sink=StoreSink(store, run.id, worker), device=options.device, on_round=after_round,
            data=(data or Datasets(options.data)).get(experiment.dataset),
            warm_up=None if before is None else store.run_folder(before.id),
        )  # fmt: skip
        if not outcome.finished:
            return False
        origin = provenance(options.device, experiment.seed, resumed_at=outcome.resumed_at)
        store.finish(run.id, summary(outcome.rounds), origin, worker=worker)
        if not options.keep_models:
            forget(store, run.id)
    except StoppedError:
        return False
    except LostClaimError:
        return True  # another worker has taken the run over: there is nothing to write
    except (StoreError, OutOfTimeError):
        raise  # not the run's fault: the study stops, and continues when there is disk space or time again
    except Exception as error:
        with contextlib.suppress(LostClaimError):
            store.fail(
                run.id, describe_error(error), provenance(options.device, run.experiment.get("seed", 0)), worker=worker
            )
    return True


def forget(store: Store, id: str) -> None:
    """Drop the states of a finished run, unless another run starts from its model: the store has all its numbers."""
    if id not in store.needs().values():
        shutil.rmtree(store.run_folder(id), ignore_errors=True)


def describe_error(error: Exception) -> str:
    """The text of an error for the store: what happened and, unless the message explains itself, where."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ValueError | OSError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


def one_by_one(
    store: Store, ids: Collection[str], worker: str, options: WorkOptions, data: Datasets | None = None
) -> bool:
    """Do runs one after the other until all of ``ids`` have ended, also those that another worker may still give up.

    Returns False if asked to stop; raises `OutOfTimeError` at the time limit.
    """
    data = data or Datasets(options.data)
    limit = None if options.ends is None else TimeLimit(options.ends)
    with Heartbeat(store.folder, worker):
        try:
            while options.halt is None or not options.halt():
                if limit is not None and store.count_open(ids):
                    limit.check()
                run = store.claim(worker, among=ids)
                if run is not None:
                    if not work(store, run, worker=worker, options=options, data=data, limit=limit):
                        return False
                elif not store.count_open(ids):
                    return True
                else:
                    free_the_dead(store)
                    time.sleep(0.5)
            return False
        finally:
            with contextlib.suppress(StoreError):
                store.release(worker)


class Heartbeat:
    """Renews a worker's claims every few seconds, on its own connection."""

    def __init__(self, folder: Path, worker: str, *, every: float = LEASE / 6) -> None:
        self.folder, self.worker, self.every = folder, worker, every
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def _beat(self) -> None:
        with Store.open(self.folder) as store:
            while not self.ended.wait(self.every):
                with contextlib.suppress(StoreError):  # a full disk is reported where rounds are written
                    store.heartbeat(self.worker)

    def __enter__(self) -> Heartbeat:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


def new_worker(pid: int | None = None) -> str:
    """A name for a worker: the machine, the process (this one by default), and a random part."""
    return f"{_machine()}/{pid or os.getpid()}/{secrets.token_hex(3)}"


def _machine() -> str:
    """This machine, and on Linux the container: process numbers mean nothing elsewhere."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        space = ""
    return f"{socket.gethostname()}~{space}"


def free_the_dead(store: Store) -> int:
    """Take the runs of dead workers of this machine without waiting for their lease to end."""
    freed = 0
    for worker in {run.worker for run in store.runs() if run.status == "running" and run.worker}:
        machine, _, rest = worker.partition("/")
        pid = rest.partition("/")[0]
        if machine == _machine() and pid.isdecimal() and not _alive(int(pid)):
            freed += store.release(worker, died=True)
    return freed


def _alive(pid: int) -> bool:
    if sys.platform == "win32":  # signal 0 is Ctrl-C there: asking would stop it, so its lease has to end
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
