"""Trains residual networks of all clients at once on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from honestly.sim.train import cuda, tensorcores
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.replay import Graph
from honestly.sim.train.residual import launches, tiles
from honestly.sim.train.residual.layout import PATCH, SIDE, ResidualNetwork
from honestly.sim.train.residual.step import Clones
from honestly.sim.train.schedule import Schedule, Stack
from honestly.sim.train.sequential import SequentialTrainer, Speed
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model, Trainer, TrainingResult


class ResidualTrainer(Trainer):
    """All clients' residual networks side by side, in bfloat16 on the tensor cores; one step is a CUDA graph.

    BatchNorm sees each client's mini-batch alone, the short last ones too. Parameters, gradients and momentum stay
    float32. Filters, activations and their gradients are bfloat16.
    """

    def __init__(self, module: nn.Module, pixels: Pixels, sgd: SGD, batch: int, *, at_once: int | None = None) -> None:
        network = ResidualNetwork.of(module, pixels.size)
        if network is None:
            raise ValueError("this model has layers that the residual kernels do not know: use the sequential trainer")
        self.network, self.pixels, self.sgd, self.batch, self.at_once = network, pixels, sgd, batch, at_once
        self.plain = SequentialTrainer(module, pixels, sgd, batch, speed=Speed(bf16=True))
        self.graphs: dict[int, Graph[Clones]] = {}

    @staticmethod
    def supports(module: nn.Module, pixels: Pixels) -> bool:
        """Whether the kernels know the model, and the device can run them."""
        device, network = pixels.images.device, ResidualNetwork.of(module, pixels.size)
        if network is None or not (tensorcores.available(device) and cuda.works_on(device)):
            return False
        return tiles.most_bytes(network) <= launches.shared_memory(device)

    def train(self, start: Model, schedules: Sequence[Schedule]) -> TrainingResult:
        """Every client trains a copy of the global model by its own schedule."""
        K, device = len(schedules), self.pixels.images.device
        size = self._at_once(K)
        rows: list[Tensor] = []
        statistics: list[Tensor] = []
        loss: list[Tensor] = []
        idle = Schedule(np.zeros((0, self.batch), np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        for first in range(0, K, size):
            some = list(schedules[first : first + size])
            graph = self.graphs.get(size)
            if graph is None:
                graph = self.graphs[size] = Graph(Clones(self.network, size, self.pixels, self.sgd, self.batch))
            graph.chunk.start_statistics.copy_(start.statistics)
            graph.run(start.theta, Stack.of([*some, *[idle] * (size - len(some))], self.batch))
            rows.append(graph.chunk.models()[: len(some)])
            statistics.append(graph.chunk.statistics[: len(some), : self.network.statistics].clone())
            loss.append(graph.chunk.loss[: len(some)].clone())
        steps = torch.tensor([s.steps for s in schedules], device=device)
        counters = start.counters + steps[:, None]  # one per BatchNorm: mini-batches that it has seen
        return TrainingResult(torch.cat(rows), torch.cat(statistics), counters, torch.cat(loss) / steps.clamp(min=1))

    def logits(self, model: Model, pixels: Pixels) -> Tensor:
        """(N, classes) scores of all samples, in evaluation mode."""
        return self.plain.logits(model, pixels)

    def _at_once(self, K: int) -> int:
        """How many clients train side by side: as many as fit half of the free memory, in equal parts."""
        if self.at_once is not None:
            return max(1, min(self.at_once, K))
        if enough := [size for size in self.graphs if size >= K]:
            return min(enough)  # those without a schedule cost next to nothing
        free, _ = torch.cuda.mem_get_info(self.pixels.images.device)
        fits = max(1, int(0.5 * free // client_bytes(self.network, self.batch)))
        return -(-K // -(-K // fits))


def client_bytes(network: ResidualNetwork, batch: int) -> int:
    """Memory of one client: outputs, activations and two gradients of each; parameters, momentum, sums."""
    numbers = sum(c.side**2 * c.outside for c in network.convolutions)
    return 2 * batch * (4 * numbers + SIDE**2 * PATCH) + 64 * network.size
