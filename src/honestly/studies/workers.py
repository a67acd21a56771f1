"""Several local processes on one study: a process that dies is replaced, and another one resumes its run."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Generator
from dataclasses import replace
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from honestly.cores import usable_cores
from honestly.runs.store import Store, StoreError
from honestly.sim.run import Stop
from honestly.studies.limit import OutOfTimeError
from honestly.studies.work import WorkOptions, new_worker, one_by_one

STOPPED, BROKEN, LATE = 130, 2, 75  # exit statuses of a worker: asked to stop, the store is broken, out of time


def processes(folder: Path, ids: Collection[str], count: int, options: WorkOptions) -> bool:
    """Do runs in ``count`` processes; False if asked to stop, `OutOfTimeError` at the time limit.

    Ctrl-C lets every process end its round; the second one ends them at once.
    """
    context = get_context("spawn")  # a forked process would inherit torch's threads and the driver's connections
    threads = max(1, usable_cores() // count)
    alive: dict[str, BaseProcess] = {}
    signalled: set[str] = set()
    late = False

    def hire() -> None:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_main, args=(folder, frozenset(ids), receiving, options, threads, os.getpid()))
        with _deaf():
            process.start()
        name = new_worker(process.pid)  # dead workers are recognised by their process number
        sending.send(name)
        sending.close()
        receiving.close()
        alive[name] = process

    try:
        with Store.open(folder) as store, Stop() as stop:
            for _ in range(min(count, max(1, store.count_open(ids)))):
                hire()
            while alive:
                time.sleep(0.2)
                for name in alive.keys() - signalled if stop.requested else ():
                    signalled.add(name)  # only once: a second signal would end it in the middle of a round
                    alive[name].terminate()
                for name in [name for name, process in alive.items() if not process.is_alive()]:
                    code = alive.pop(name).exitcode
                    store.release(name, died=code not in (0, STOPPED, LATE))
                    late = late or code == LATE
                    if code == BROKEN:
                        stop.requested = True
                        raise StoreError(_failure_message(folder))
                    if code != 0 and not late and not stop.requested and store.count_open(ids):
                        hire()
            if late and not stop.requested and store.count_open(ids):
                raise OutOfTimeError
            return not stop.requested
    finally:
        for process in alive.values():
            process.kill()
            process.join()
        if alive:
            with Store.open(folder) as store:
                for name in alive:
                    store.release(name)


@contextlib.contextmanager
def _deaf() -> Generator[None]:
    """Start processes that ignore Ctrl-C: the driver gets it and asks each worker to stop once."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # the first process starts it, which would undo what follows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _failure_message(folder: Path) -> str:
    return f"a worker could not write to {folder}; its message is above. Fix it and run the same command again."


def _main(
    folder: Path, ids: Collection[str], name: Connection, options: WorkOptions, threads: int, parent: int
) -> None:  # pragma: no cover (runs in a process of its own)
    """A worker process: it stops when its driver is gone."""
    import sys

    import torch

    signal.signal(signal.SIGTERM, _stop)
    torch.set_num_threads(threads)
    options = replace(options, halt=_orphan(parent))
    try:
        worker = str(name.recv())
        name.close()
        with Store.open(folder) as store:
            code = 0 if one_by_one(store, ids, worker, options) else STOPPED
    except OutOfTimeError:
        code = LATE
    except (KeyboardInterrupt, EOFError):  # asked to stop, or the driver had already ended
        code = STOPPED
    except StoreError as error:
        print(f"honestly bench: {error}", file=sys.stderr)
        code = BROKEN
    sys.exit(code)


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _orphan(parent: int) -> Callable[[], bool]:
    return lambda: os.getppid() != parent
