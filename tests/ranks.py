"""Real process groups for tests: `run(job, K)` calls `job(rank, K, ...)` on K processes and returns their results."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT = 60.0


def context() -> Any:
    """Processes are forked from one that has imported torch and nothing else."""
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(["torch.distributed", "honestly.torch"])
    return forkserver


def run(
    job: Callable[..., Any], K: int, *arguments: Any, timeout: float = 30.0, returns: int | None = None
) -> list[Any]:
    """What each rank returned, in order. A rank's exception is raised here; `returns` ranks are waited for (all)."""
    processes = context()
    answers = processes.Queue()
    with tempfile.TemporaryDirectory() as folder:
        started = [
            processes.Process(target=_rank, args=(job, rank, K, Path(folder) / "meet", timeout, answers, arguments))
            for rank in range(K)
        ]
        for process in started:
            process.start()
        try:
            found: dict[int, Any] = {}
            for _ in range(K if returns is None else returns):
                rank, value, error = answers.get(timeout=TIMEOUT)
                if error:
                    raise AssertionError(f"rank {rank}: {error}")
                found[rank] = value
        finally:
            for process in started:
                process.join(1.0)
                if process.is_alive():
                    process.kill()
                    process.join()
    return [found.get(rank) for rank in range(K)]


def _rank(job: Any, rank: int, K: int, meet: Path, timeout: float, answers: Any, arguments: tuple[Any, ...]) -> None:
    import warnings

    import torch
    import torch.distributed as dist

    warnings.simplefilter("error")
    os.environ["HONESTLY_THREADS"] = "1"
    torch.set_num_threads(1)
    value, error = None, ""
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{meet}", rank=rank, world_size=K, timeout=timedelta(seconds=timeout)
        )
        value = job(rank, K, *arguments)
    except BaseException:
        error = traceback.format_exc()
    answers.put((rank, value, error))
    answers.close()
    answers.join_thread()
    if dist.is_initialized() and not error:
        dist.destroy_process_group()
