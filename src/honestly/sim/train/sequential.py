"""Client after client: any `nn.Module`, with autograd; on a GPU one training step is a CUDA graph."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from honestly.sim.train.base import Model, Trained, Trainer
from honestly.sim.train.flat import Layout, bind
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.schedule import Schedule
from honestly.sim.train.sgd import SGD

EVALUATION = {"cpu": 125, "cuda": 1000}  # images a step of the evaluation


@dataclass(frozen=True)
class Speed:
    """How a large model runs on a GPU.

    Attributes:
        bf16: run the layers in bfloat16 (autocast); parameters and updates stay float32.
        compile: fuse the layers with `torch.compile`.
        lanes: clients that train side by side, each on its own stream of one CUDA graph.
    """

    bf16: bool = False
    compile: bool = False
    lanes: int = 1


class Lane:
    """One client at a time: a copy of the module whose parameters and gradients are views of flat rows."""

    def __init__(self, module: nn.Module, pixels: Pixels, sgd: SGD, batch: int, speed: Speed) -> None:
        device = pixels.images.device
        self.pixels, self.sgd, self.batch, self.speed = pixels, sgd, batch, speed
        self.module = copy.deepcopy(module).to(device).train()
        self.channels_last = device.type == "cuda"
        self.layout = Layout.of_parameters(self.module)
        self.theta = torch.zeros(self.layout.size, device=device)
        self.grad = torch.zeros_like(self.theta)
        self.velocity = torch.zeros_like(self.theta)
        self.loss = torch.zeros((), device=device)
        bind(self.module, self.layout, self.theta, self.grad)
        self.floats = [b for _, b in self.module.named_buffers() if b.is_floating_point()]
        self.ints = [b for _, b in self.module.named_buffers() if not b.is_floating_point()]
        self.forward: Any = torch.compile(self._loss) if speed.compile else self._loss

    def begin(self, start: Model) -> None:
        """Take the global model and a fresh optimiser."""
        self.theta.copy_(start.theta)
        self.velocity.zero_()
        self.loss.zero_()
        _scatter(start.statistics, self.floats)
        _scatter(start.counters, self.ints)

    def statistics(self) -> Tensor:
        """The floating-point buffers as one row."""
        return _gather(self.floats, self.theta.new_empty(0))

    def counters(self) -> Tensor:
        """The integer buffers as one row."""
        return _gather(self.ints, self.theta.new_empty(0)).to(torch.int64)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self.speed.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.theta.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def _loss(self, x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        with self._autocast():
            logits = self.module(x)
        return (cross_entropy(logits.float(), labels, reduction="none") * weights).sum()

    def images(self, pixels: Pixels, raw: Tensor) -> Tensor:
        """Normalised images, in the memory layout that suits the device."""
        x = pixels.normalised(raw)
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    def step(
        self,
        samples: Tensor,
        weights: Tensor,
        flips: Tensor | None,
        crops: Tensor | None,
        keep: Tensor | float,
    ) -> None:
        """One mini-batch; ``weights`` are 1/n."""
        x = self.images(self.pixels, self.pixels.batch(samples, flips, crops))
        self.grad.zero_()
        loss = self.forward(x, self.pixels.labels[samples], weights)
        loss.backward()
        self.loss.add_(loss.detach())
        with torch.no_grad():
            if isinstance(keep, Tensor) or keep != 1.0:
                self.velocity.mul_(keep)
            self.sgd.step(self.theta, self.grad, self.velocity)

    def run(self, schedule: Schedule) -> None:
        """All mini-batches of one client."""
        for t in range(schedule.steps):
            self.step(*batch_of(schedule, t, self.theta.device), keep=0.0 if schedule.fresh[t] else 1.0)


def batch_of(
    schedule: Schedule, t: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The samples, weights, flips and crops of mini-batch t, without padding."""
    n = int(schedule.counts[t])
    return (
        torch.from_numpy(schedule.samples[t, :n]).to(device),
        torch.full((n,), 1.0 / n, device=device),
        None if schedule.flips is None else torch.from_numpy(schedule.flips[t, :n]).to(device),
        None if schedule.crops is None else torch.from_numpy(schedule.crops[t, :n]).to(device),
    )


def _scatter(row: Tensor, tensors: Sequence[Tensor]) -> None:
    at = 0
    for tensor in tensors:
        tensor.copy_(row[at : at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()


def _gather(tensors: Sequence[Tensor], empty: Tensor) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors]) if tensors else empty


class SequentialTrainer(Trainer):
    """Trains clients one after the other (CPU: one per core; GPU: one per lane)."""

    def __init__(
        self, module: nn.Module, pixels: Pixels, sgd: SGD, batch: int, *, speed: Speed | None = None
    ) -> None:
        self.speed = speed or Speed()
        self.made = lambda: Lane(module, pixels, sgd, batch, self.speed)
        self.batch = batch
        self.device = pixels.images.device
        self.mine = local()
        self.pool: ThreadPoolExecutor | None = None
        self.graphs: Any = None

    def _lane(self) -> Lane:
        """This thread's lane, made once."""
        lane: Lane | None = getattr(self.mine, "lane", None)
        if lane is None:
            lane = self.mine.lane = self.made()
        return lane

    def train(self, start: Model, schedules: Sequence[Schedule]) -> Trained:
        """Every client trains a copy of the global model by its own schedule."""
        K = len(schedules)
        theta = start.theta.new_empty((K, len(start.theta)))
        statistics = start.statistics.new_empty((K, len(start.statistics)))
        counters = start.counters.new_empty((K, len(start.counters)))
        loss = start.theta.new_empty(K)

        def keep(k: int, lane: Lane) -> None:
            theta[k], statistics[k], counters[k] = lane.theta, lane.statistics(), lane.counters()
            loss[k] = lane.loss / max(schedules[k].steps, 1)

        if self.device.type == "cuda":
            from honestly.sim.train.graphs import Lanes

            if self.graphs is None:
                self.graphs = Lanes([self.made() for _ in range(max(1, self.speed.lanes))], self.batch)
            self.graphs.run(start, schedules, keep)
            return Trained(theta, statistics, counters, loss)

        def work(k: int) -> None:
            lane = self._lane()
            lane.begin(start)
            lane.run(schedules[k])
            keep(k, lane)

        self._in_threads(work, range(K))
        return Trained(theta, statistics, counters, loss)

    def logits(self, model: Model, pixels: Pixels) -> Tensor:
        """(N, classes) scores of all samples, in evaluation mode."""
        lane = self.graphs.lanes[0] if self.graphs is not None else self._lane()
        lane.begin(model)
        lane.module.eval()
        found: list[Tensor] = []
        try:
            with torch.no_grad(), lane._autocast():
                for rows in torch.arange(len(pixels.labels), device=self.device).split(EVALUATION[self.device.type]):
                    found.append(lane.module(lane.images(pixels, pixels.batch(rows))).float())
        finally:
            lane.module.train()
        return torch.cat(found)

    def _in_threads(self, work: Any, parts: Sequence[int]) -> None:
        cores = torch.get_num_threads()
        if self.pool is None:
            self.pool = ThreadPoolExecutor(max_workers=cores, initializer=torch.set_num_threads, initargs=(1,))
        try:
            torch.set_num_threads(1)
            for _ in self.pool.map(work, parts):
                pass
        finally:
            torch.set_num_threads(cores)
