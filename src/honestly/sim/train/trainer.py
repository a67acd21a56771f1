"""What a trainer is: it runs the schedules of K clients from one global model, and it evaluates a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from honestly.sim.train.flat import Layout
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.schedule import Schedule


@dataclass(frozen=True)
class Model:
    """A global model as flat rows: parameters (d,), floating-point buffers (s,) and integer buffers (c,)."""

    theta: Tensor
    statistics: Tensor
    counters: Tensor

    @classmethod
    def of(cls, module: nn.Module, device: torch.device | str = "cpu") -> Model:
        """The flat rows of a module."""
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        ints = Layout.of({name: b for name, b in module.named_buffers() if not b.is_floating_point()})
        return cls(
            Layout.of_parameters(module).flatten(state).to(device),
            Layout.of_statistics(module).flatten(state).to(device),
            ints.flatten(state).to(torch.int64).to(device),
        )


@dataclass(frozen=True)
class TrainingResult:
    """The clients' models after local training: (K, d), (K, s), (K, c), and their mean training loss (K,)."""

    theta: Tensor
    statistics: Tensor
    counters: Tensor
    loss: Tensor


class Trainer(ABC):
    """Runs local training for all clients of a round."""

    @abstractmethod
    def train(self, start: Model, schedules: Sequence[Schedule]) -> TrainingResult:
        """Every client trains a copy of the global model by its own schedule."""

    @abstractmethod
    def logits(self, model: Model, pixels: Pixels) -> Tensor:
        """(N, classes) scores of all samples of ``pixels``, in evaluation mode."""
