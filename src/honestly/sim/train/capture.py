"""Captures CUDA graphs while other threads train on streams of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch

# A capture is spoilt by whatever waits for the whole device or loads code onto it: one thread at a time does such things.
WHOLE_DEVICE = RLock()


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Record what the block launches, instead of running it."""
    with WHOLE_DEVICE, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        yield
