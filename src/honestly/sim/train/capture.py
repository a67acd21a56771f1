"""Captures CUDA graphs while other threads train on streams of their own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch

# What waits for the whole device, or loads code onto it, spoils a capture: one thread at a time does such things.
WHOLE_DEVICE = RLock()


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Generator[None]:
    """Record what the block launches, instead of running it."""
    with WHOLE_DEVICE, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        yield
