"""Captures CUDA graphs while other threads train on streams of their own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from honestly.engine.passes.exclusive import WHOLE_DEVICE

ATTEMPTS = 3  # another library in the process may wait for the device, which spoils a capture


def capture(record: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """A graph of what ``record`` launches; it is recorded, not run."""
    before = torch.cuda.current_stream()
    for attempt in range(ATTEMPTS):
        graph = torch.cuda.CUDAGraph()
        try:
            with WHOLE_DEVICE, _pause_collection(), torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
                record()
            return graph
        except RuntimeError:
            torch.cuda.set_stream(before)  # torch leaves the thread on the spoilt stream
            pool = None  # and the pool marked as being recorded to
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("not reached")


@contextmanager
def _pause_collection() -> Generator[None]:
    """Pause garbage collection: freeing a graph of an earlier model during a capture would spoil it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
