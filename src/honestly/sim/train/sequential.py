"""Client after client: any `nn.Module`, with autograd; on a GPU one training step is a CUDA graph."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from honestly.kernels.torch_private import copy_each
from honestly.sim.models.registry import DRAWING
from honestly.sim.train.cores import Cores
from honestly.sim.train.flat import Layout
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.schedule import Schedule
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model, Trainer, TrainingResult

EVALUATION = {"cpu": 125, "cuda": 1000}  # images per step of the evaluation


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
    """One client at a time: parameters, gradients and momentum are flat rows; the module itself is only a skeleton.

    The loss is a function of the parameters, so all lanes share one compiled program.
    """

    def __init__(self, loss: Loss, module: nn.Module, pixels: Pixels, sgd: SGD) -> None:
        device = pixels.images.device
        self.loss_of, self.pixels, self.sgd = loss, pixels, sgd
        self.layout = Layout.of_parameters(module)
        self.theta = torch.zeros(self.layout.size, device=device)
        self.grad = torch.zeros_like(self.theta)
        self.velocity = torch.zeros_like(self.theta)
        self.loss = torch.zeros((), device=device)
        self.parameters = {name: view.requires_grad_() for name, view in self.layout.views(self.theta.detach())}
        self.grads = [view for _, view in self.layout.views(self.grad)]
        self.buffers = {name: b.detach().to(device, copy=True) for name, b in module.named_buffers()}
        self.floats = [b for b in self.buffers.values() if b.is_floating_point()]
        self.ints = [b for b in self.buffers.values() if not b.is_floating_point()]

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

    @contextlib.contextmanager
    def preserve(self) -> Generator[None]:
        """Restore the client's state at the end of the context."""
        tensors = [self.theta, self.velocity, self.loss, *self.buffers.values()]
        before = [t.clone() for t in tensors]
        yield
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)

    def step(
        self,
        samples: Tensor,
        weights: Tensor,
        flips: Tensor | None,
        crops: Tensor | None,
        keep: Tensor | float,
        *,
        compiled: bool = False,
    ) -> None:
        """One mini-batch; ``weights`` are 1/n."""
        x = self.loss_of.images(self.pixels, self.pixels.batch(samples, flips, crops))
        f = self.loss_of.compiled if compiled else self.loss_of
        loss = f(self.parameters, self.buffers, x, self.pixels.labels[samples], weights)
        gradients = torch.autograd.grad(loss, list(self.parameters.values()), materialize_grads=True)
        copy_each(self.grads, list(gradients))
        self.loss.add_(loss.detach())
        if isinstance(keep, Tensor) or keep != 1.0:
            self.velocity.mul_(keep)
        self.sgd.step(self.theta, self.grad, self.velocity)

    def run(self, schedule: Schedule) -> None:
        """All mini-batches of one client."""
        for t in range(schedule.steps):
            self.step(*batch_of(schedule, t, self.theta.device), keep=0.0 if schedule.fresh[t] else 1.0)


@contextlib.contextmanager
def cudnn_settings(*, exact: bool) -> Generator[None]:
    """``exact``: convolutions in true float32, not TF32; else try out cuDNN's algorithms and keep the fastest."""
    cudnn = torch.backends.cudnn
    conv: Any = getattr(cudnn, "conv", None)
    before = cudnn.benchmark, conv.fp32_precision if conv is not None else cudnn.allow_tf32
    cudnn.benchmark = not exact  # some of the fastest algorithms round more
    try:
        if exact and conv is not None:
            conv.fp32_precision = "ieee"
        elif exact:
            cudnn.allow_tf32 = False
        yield
    finally:
        cudnn.benchmark = before[0]
        if exact and conv is not None:
            conv.fp32_precision = before[1]
        elif exact:
            cudnn.allow_tf32 = bool(before[1])


class Loss:
    """Weighted cross-entropy of a mini-batch as a function of parameters and buffers; changes the buffers in place."""

    def __init__(self, module: nn.Module, device: torch.device, speed: Speed) -> None:
        self.module = copy.deepcopy(module).to(device).train()
        self.bf16, self.device = speed.bf16, device
        # a function of its own, so the compiled program does not depend on which object called it
        self.compiled: Any = torch.compile(self.__call__, dynamic=False) if speed.compile else self.__call__

    def __call__(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, labels: Tensor, weights: Tensor
    ) -> Tensor:
        """`sum_i weights_i CE_i`."""
        logits = self.logits(parameters, buffers, x)
        return (cross_entropy(logits, labels, reduction="none") * weights).sum()

    def logits(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        """(n, classes) in float32."""
        if not self.bf16:
            return functional_call(self.module, (parameters, buffers), (x,)).float()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
            return functional_call(self.module, (parameters, buffers), (x,)).float()

    def images(self, pixels: Pixels, raw: Tensor) -> Tensor:
        """Normalised images, in the memory layout that suits the device."""
        x = pixels.normalise(raw)
        return x.contiguous(memory_format=torch.channels_last) if self.device.type == "cuda" else x


def batch_of(schedule: Schedule, t: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
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


def draws_numbers(loss: Loss, pixels: Pixels) -> bool:
    """Whether the model, in training mode, draws from PyTorch's generator, as dropout does."""
    module = copy.deepcopy(loss.module)
    two = torch.arange(len(pixels.labels))[:2]
    with DRAWING, torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        with contextlib.suppress(RuntimeError, ValueError):  # a batch of two may not do: BatchNorm on a single value
            module(pixels.normalise(pixels.batch(two)))
        return not torch.equal(torch.get_rng_state(), before)


def draw_in_turn(work: Callable[[int], None], schedules: Sequence[Schedule]) -> None:
    """Train one client after the other, each with a seed of its own; threads would share PyTorch's generator.

    The order of a client's samples follows from the experiment's seed, the round and the client, and the seed from it.
    """
    for k, schedule in enumerate(schedules):
        name = hashlib.sha256(schedule.samples.tobytes()).digest()
        with DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(name[:7], "big"))
            work(k)


class SequentialTrainer(Trainer):
    """Trains clients one after the other (CPU: one per core; GPU: one per lane)."""

    def __init__(self, module: nn.Module, pixels: Pixels, sgd: SGD, batch: int, *, speed: Speed | None = None) -> None:
        self.speed = speed or Speed()
        self.device = pixels.images.device
        self.batch = batch
        shared = Loss(module, self.device, self.speed)

        def make_lane() -> Lane:
            # calling a module with other parameters is not safe in two threads: on a CPU each has its own skeleton
            loss = shared if self.device.type == "cuda" else Loss(module, self.device, self.speed)
            return Lane(loss, module, pixels, sgd)

        self.make_lane = make_lane
        self.mine = local()
        self.cores = Cores()
        self.graphs: Any = None
        self.draws = self.device.type == "cpu" and draws_numbers(shared, pixels)

    def _lane(self) -> Lane:
        """This thread's lane, made once."""
        lane: Lane | None = getattr(self.mine, "lane", None)
        if lane is None:
            lane = self.mine.lane = self.make_lane()
        return lane

    def train(self, start: Model, schedules: Sequence[Schedule]) -> TrainingResult:
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
                self.graphs = Lanes([self.make_lane() for _ in range(max(1, self.speed.lanes))], self.batch)
            with cudnn_settings(exact=not self.speed.bf16):
                self.graphs.run(start, schedules, keep)
            return TrainingResult(theta, statistics, counters, loss)

        def work(k: int) -> None:
            lane = self._lane()
            lane.begin(start)
            lane.run(schedules[k])
            keep(k, lane)

        if self.draws:
            self.cores.do(lambda schedules: draw_in_turn(work, schedules), [schedules])
        else:
            self.cores.do(work, range(K))
        return TrainingResult(theta, statistics, counters, loss)

    def logits(self, model: Model, pixels: Pixels) -> Tensor:
        """(N, classes) scores of all samples, in evaluation mode."""
        lane = self.graphs.lanes[0] if self.graphs is not None else self._lane()
        lane.begin(model)
        loss, skeleton = lane.loss_of, lane.loss_of.module.eval()
        scores: list[Tensor] = []
        careful = cudnn_settings(exact=True) if self.device.type == "cuda" else contextlib.nullcontext()
        try:
            with torch.no_grad(), careful:
                for rows in torch.arange(len(pixels.labels), device=self.device).split(EVALUATION[self.device.type]):
                    x = loss.images(pixels, pixels.batch(rows))
                    scores.append(loss.logits(lane.parameters, lane.buffers, x))
        finally:
            skeleton.train()
        return torch.cat(scores)
