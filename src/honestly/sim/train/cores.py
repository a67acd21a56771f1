"""Worker threads for training on a CPU: one per core, each with single-threaded operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


class Cores:
    """Threads that are reused in every round. The results do not depend on how many there are."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None

    def do(self, work: Callable[[Any], None], parts: Iterable[Any]) -> None:
        """Call ``work`` with every part."""
        cores = torch.get_num_threads()
        if self.pool is None:
            self.pool = ThreadPoolExecutor(max_workers=cores, initializer=torch.set_num_threads, initargs=(1,))
        try:
            torch.set_num_threads(1)
            for _ in self.pool.map(work, parts):
                pass
        finally:
            torch.set_num_threads(cores)
