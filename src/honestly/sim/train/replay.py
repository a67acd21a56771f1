"""A training step of many clients as one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from honestly.sim.train.capture import capture
from honestly.sim.train.schedule import Stack


class SteppingClients(Protocol):
    """Clients that train side by side, step by step."""

    theta: Tensor

    def begin(self, start: Tensor) -> None:
        """Every client starts from the global model with a fresh optimiser."""
        ...

    def scheduled_step(self, schedule: Mapping[str, Tensor], t: Tensor) -> None:
        """Step number ``t`` (on the device) of the schedules (T, K, ...), and ``t`` moves on."""
        ...


C = TypeVar("C", bound=SteppingClients)


class Graph(Generic[C]):
    """One training step of a chunk as a CUDA graph that reads its mini-batch from the schedule by a step counter."""

    def __init__(self, chunk: C) -> None:
        self.chunk = chunk
        self.capacity = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.buffers: dict[str, Tensor] = {}

    def run(self, start: Tensor, stack: Stack) -> None:
        """Train the chunk by these schedules, from the global model ``start``."""
        T = stack.samples.shape[1]
        arrays = self.arrays(stack)
        if self.graph is None or self.capacity < T or arrays.keys() != self.buffers.keys():
            self._capture(arrays, max(64, 1 << (T - 1).bit_length()))
        for name, values in arrays.items():
            self.buffers[name][:T].copy_(torch.from_numpy(values), non_blocking=True)
        self.chunk.begin(start)
        self.t.zero_()
        assert self.graph is not None
        for _ in range(T):
            self.graph.replay()

    @staticmethod
    def arrays(stack: Stack) -> dict[str, np.ndarray]:
        """The schedules with the step as the first axis."""
        arrays: dict[str, Any] = {
            "samples": stack.samples,
            "weights": stack.weights,
            "rate": stack.active[:, :, None].astype(np.float32),
            "keep": (~stack.fresh[:, :, None]).astype(np.float32),
        }
        if stack.flips is not None:
            arrays["flips"] = stack.flips
        if stack.crops is not None:
            arrays["crops"] = stack.crops
        return {name: np.ascontiguousarray(np.swapaxes(a, 0, 1)) for name, a in arrays.items()}

    def _capture(self, arrays: Mapping[str, np.ndarray], capacity: int) -> None:
        device = self.chunk.theta.device
        self.capacity = capacity
        self.buffers = {
            name: torch.zeros((capacity, *a.shape[1:]), dtype=torch.from_numpy(a[:0]).dtype, device=device)
            for name, a in arrays.items()
        }
        self.t = torch.zeros(1, dtype=torch.int64, device=device)

        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # so that every library is loaded and every workspace exists before the capture
                self.chunk.scheduled_step(self.buffers, self.t)
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graph = capture(lambda: self.chunk.scheduled_step(self.buffers, self.t))
