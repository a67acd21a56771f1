"""Apply a function to many units of work, in this process or in several, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")


def map_units(run: Callable[[Work], Result], work: Iterable[Work], jobs: int) -> Iterable[Result]:
    """Apply `run` to each unit; several jobs are separate processes with one thread each.

    Units are taken one by one, shortly before they run, so an iterator may depend on earlier results.

    >>> list(map_units(abs, [-1, 2], 1))
    [1, 2]
    """
    if jobs <= 1:
        yield from (run(unit) for unit in work)
        return
    # matrices of 20 x 20 gain nothing from threads, and processes with many threads each slow each other down
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for unit in work:
                    waiting.append(pool.submit(run, unit))
                    if len(waiting) >= 2 * jobs:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C or an error, start nothing more
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
