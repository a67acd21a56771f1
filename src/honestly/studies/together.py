"""Several runs side by side on one GPU: threads of this process, each on a stream of its own.

A small model leaves most of a large GPU idle between its kernels and while the host aggregates: several runs fill it.
The numbers of a run do not depend on what runs beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import torch

from honestly.runs.store import Store
from honestly.sim.run import Stop
from honestly.studies.limit import OutOfTimeError
from honestly.studies.work import Datasets, WorkOptions, new_worker, one_by_one


def side_by_side(folder: Path, ids: Collection[str], count: int, options: WorkOptions) -> bool:
    """Do runs in ``count`` threads on one GPU; False if asked to stop, `OutOfTimeError` at the time limit.

    Ctrl-C lets every run end its round.
    """
    if torch.device(options.device).type != "cuda":
        raise ValueError(f"--together is for a GPU, but the device is {options.device}: use --workers for CPU cores")
    data, broken = Datasets(options.data), threading.Event()
    with Stop() as stop, ThreadPoolExecutor(count) as pool:
        own = replace(options, halt=lambda: stop.requested or broken.is_set())

        def serve() -> bool:
            try:
                with Store.open(folder) as store, torch.cuda.stream(torch.cuda.Stream(options.device)):
                    return one_by_one(store, ids, new_worker(), own, data)
            except OutOfTimeError:
                raise  # the others also finish their rounds
            except BaseException:
                broken.set()  # a full disk also stops the others
                raise

        threads = [pool.submit(serve) for _ in range(count)]
        while wait(threads, timeout=0.5).not_done:
            pass  # wake up now and then: only this thread handles signals
        return min(thread.result() for thread in threads)
