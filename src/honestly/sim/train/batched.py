"""All clients at once: the batched program on CPU cores, or captured in one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import local

import numpy as np
import torch
from torch import Tensor, nn

from honestly.sim.train import native
from honestly.sim.train.cores import Cores
from honestly.sim.train.flat import Layout
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.program import BatchedModel, compile_program
from honestly.sim.train.replay import Graph
from honestly.sim.train.schedule import Schedule, Stack
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model, Trainer, TrainingResult

CACHE = 2 << 20  # bytes: a chunk of clients whose activations stay in a core's cache runs fastest
EVALUATION = {"cpu": 125, "cuda": 2500}  # images per step of the evaluation


class ClientChunk:
    """A fixed number of clients that train side by side; their parameters, gradients and momentum are its rows."""

    def __init__(
        self, module: nn.Module, K: int, pixels: Pixels, sgd: SGD, batch: int, *, fused: bool | None = None
    ) -> None:
        self.K, self.pixels, self.sgd, self.batch = K, pixels, sgd, batch
        device = pixels.images.device
        self.layout = Layout.of_parameters(module)
        self.theta = torch.zeros((K, self.layout.size), device=device)
        self.grad = torch.zeros_like(self.theta)
        self.velocity = torch.zeros_like(self.theta)
        self.loss = torch.zeros(K, device=device)
        program = compile_program(module, self.layout, self.theta, self.grad, size=pixels.size, fused=fused)
        if program is None:
            raise ValueError("this model has layers that the batched program does not know: use the sequential trainer")
        self.program: BatchedModel = program
        C, H, W = pixels.size
        self.x = torch.empty(K * H * C * W * batch, device=device)
        self.native = self._native() if program.native else None

    def _native(self) -> native.Step:
        rows = {"theta": self.theta, "grad": self.grad, "velocity": self.velocity, "loss": self.loss}
        return native.Step(self.program.ops, self.pixels, self.sgd, **rows)

    def step(
        self,
        samples: Tensor,
        weights: Tensor,
        flips: Tensor | None,
        crops: Tensor | None,
        rate: Tensor | None,
        keep: Tensor | None,
    ) -> None:
        """One mini-batch of every client: ``samples`` and ``weights`` are (K, B)."""
        x = self.images(samples, flips, crops)
        loss = self.program.loss_and_gradient(x, self.pixels.labels[samples], weights)
        self.loss.add_(loss if rate is None else loss * rate[:, 0])
        self.sgd.step(self.theta, self.grad, self.velocity, rate=rate, keep=keep)

    def images(self, samples: Tensor, flips: Tensor | None, crops: Tensor | None) -> Tensor:
        """(K, H, C, W, B): the images of a mini-batch, mirrored, cropped and normalised."""
        K, B = samples.shape
        C, H, W = self.pixels.size
        raw = self.pixels.batch(
            samples.reshape(-1),
            None if flips is None else flips.reshape(-1),
            None if crops is None else crops.reshape(-1, 2),
        )
        return self.pixels.batch_inner(raw, K, out=self.x[: K * H * C * W * B].view(K, H, C, W, B))

    def scheduled_step(self, schedule: Mapping[str, Tensor], t: Tensor) -> None:
        """Step number ``t`` (on the device) of the schedules (T, K, ...), and ``t`` moves on."""
        if self.native is not None and not self.pixels.crop and "flips" not in schedule:
            self.native(schedule, t)
            return
        now = {name: b.index_select(0, t)[0] for name, b in schedule.items()}
        flips, crops = now.get("flips"), now.get("crops")
        if self.native is not None:
            self.native(schedule, t, self.images(now["samples"], flips, crops))
        else:
            self.step(now["samples"], now["weights"], flips, crops, now["rate"], now["keep"])
            t.add_(1)

    def run(self, stack: Stack) -> None:
        """All mini-batches, one after the other."""
        samples, weights = torch.from_numpy(stack.samples), torch.from_numpy(stack.weights)
        flips = None if stack.flips is None else torch.from_numpy(stack.flips)
        crops = None if stack.crops is None else torch.from_numpy(stack.crops)
        for t in range(samples.shape[1]):
            # one client alone needs no padding: cut its last batch short instead
            n = int(np.count_nonzero(stack.weights[0, t])) if self.K == 1 else self.batch
            idle = not stack.active[:, t].all()
            again = stack.fresh[:, t].any()
            self.step(
                samples[:, t, :n],
                weights[:, t, :n],
                None if flips is None else flips[:, t, :n],
                None if crops is None else crops[:, t, :n],
                torch.from_numpy(stack.active[:, t, None].astype(np.float32)) if idle else None,
                torch.from_numpy((~stack.fresh[:, t, None]).astype(np.float32)) if again else None,
            )

    def begin(self, start: Tensor) -> None:
        """Every client starts from the global model with a fresh optimiser."""
        self.theta.copy_(start.expand_as(self.theta))
        self.velocity.zero_()
        self.loss.zero_()


class BatchedTrainer(Trainer):
    """Trains clients in chunks: as many at once as fit a CPU core's cache, or a GPU's memory.

    On a CPU each worker thread trains its own chunk with single-threaded operations, so the numbers do not depend
    on the number of cores. On a GPU one training step of a whole chunk is a CUDA graph.
    """

    def __init__(
        self,
        module: nn.Module,
        pixels: Pixels,
        sgd: SGD,
        batch: int,
        *,
        at_once: int | None = None,
        fused: bool | None = None,
    ) -> None:
        self.module, self.pixels, self.sgd, self.batch = module, pixels, sgd, batch
        self.at_once, self.fused = at_once, fused
        self.device = pixels.images.device
        self.layout = Layout.of_parameters(module)
        self.mine = local()
        self.cores = Cores()
        self.graphs: dict[int, Graph[ClientChunk]] = {}
        self.sizes: dict[int, int] = {}

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Whether the model can run as a batched program."""
        layout = Layout.of_parameters(module)
        row = torch.zeros((1, layout.size))
        return compile_program(module, layout, row, row) is not None

    def train(self, start: Model, schedules: Sequence[Schedule]) -> TrainingResult:
        """Every client trains a copy of the global model by its own schedule."""
        K = len(schedules)
        theta = torch.empty((K, self.layout.size), device=self.device)
        loss = torch.empty(K, device=self.device)
        size = self.sizes[K] = self.sizes.get(K) or self._chunk_size(K)  # kept: a graph's memory is in use now
        parts = [range(a, min(a + size, K)) for a in range(0, K, size)]
        if self.device.type == "cuda":
            for part in parts:
                self._on_gpu(start, [schedules[k] for k in part], size, theta[part.start : part.stop], loss, part.start)
        else:

            def work(part: range) -> None:
                chunk = self._chunk(len(part))
                chunk.begin(start.theta)
                chunk.run(Stack.of([schedules[k] for k in part], self.batch))
                theta[part.start : part.stop] = chunk.theta
                loss[part.start : part.stop] = chunk.loss

            self.cores.do(work, parts)
        steps = torch.tensor([max(s.steps, 1) for s in schedules], device=self.device)
        empty = torch.empty((K, 0), device=self.device)
        return TrainingResult(theta, empty, empty.to(torch.int64), loss / steps)

    def logits(self, model: Model, pixels: Pixels) -> Tensor:
        """(N, classes) scores of all samples."""
        N = len(pixels.labels)
        each = EVALUATION[self.device.type]
        parts = [range(a, min(a + each, N)) for a in range(0, N, each)]
        scores: list[Tensor] = [torch.empty(0)] * len(parts)

        def work(number: int) -> None:
            part = parts[number]
            program = self._evaluator(model.theta)
            rows = torch.arange(part.start, part.stop, device=self.device)
            x = pixels.batch_inner(pixels.batch(rows), 1)
            scores[number] = program.logits(x)[0].t().contiguous()

        if self.device.type == "cuda":
            for number in range(len(parts)):
                work(number)
        else:
            self.cores.do(work, range(len(parts)))
        return torch.cat(scores)

    def _evaluator(self, theta: Tensor) -> BatchedModel:
        evaluator: BatchedModel | None = getattr(self.mine, "evaluator", None)
        if evaluator is None:
            row = torch.empty((1, self.layout.size), device=self.device)
            size = self.pixels.size
            evaluator = self.mine.evaluator = compile_program(
                self.module, self.layout, row, row, size=size, fused=self.fused
            )
            assert evaluator is not None
        evaluator.theta.copy_(theta[None])
        return evaluator

    def _chunk(self, K: int) -> ClientChunk:
        """This thread's chunk of K clients, made once."""
        chunks: dict[int, ClientChunk] | None = getattr(self.mine, "chunks", None)
        if chunks is None:
            chunks = self.mine.chunks = {}
        if K not in chunks:
            chunks[K] = ClientChunk(self.module, K, self.pixels, self.sgd, self.batch, fused=self.fused)
        return chunks[K]

    def _chunk_size(self, K: int) -> int:
        """How many clients train side by side."""
        if self.at_once is not None:
            return max(1, min(self.at_once, K))
        each = activation_bytes(self.module, self.pixels.size, self.batch)
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            # what is cached for an earlier chunk can be used again
            free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            fits = max(1, int(0.5 * free // (each + 16 * self.layout.size)))
            return -(-K // -(-K // fits))  # equal chunks
        return max(1, min(CACHE // each, -(-K // 4)))

    def _on_gpu(
        self, start: Model, schedules: Sequence[Schedule], size: int, theta: Tensor, loss: Tensor, first: int
    ) -> None:
        graph = self.graphs.get(size)
        if graph is None:
            chunk = ClientChunk(self.module, size, self.pixels, self.sgd, self.batch, fused=self.fused)
            graph = self.graphs[size] = Graph(chunk)
        idle = Schedule(np.zeros((0, self.batch), np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        n = len(schedules)
        graph.run(start.theta, Stack.of([*schedules, *[idle] * (size - n)], self.batch))
        theta.copy_(graph.chunk.theta[:n])
        loss[first : first + n] = graph.chunk.loss[:n]


def activation_bytes(module: nn.Module, size: tuple[int, int, int], batch: int) -> int:
    """Memory that one client needs for a training step of the batched program, roughly."""
    assert isinstance(module, nn.Sequential)
    total = 0
    x = torch.empty((1, *size), device="meta")
    with torch.no_grad():
        for layer in module:
            inside = x.numel()
            x = layer.to("meta")(x) if not list(layer.parameters()) else _meta(layer, x)
            if isinstance(layer, nn.Conv2d):
                window = int(np.prod(layer.kernel_size)) * layer.in_channels
                total += 2 * window * int(np.prod(x.shape[2:]))
            total += 2 * (inside + x.numel())
    return 4 * total * batch


def _meta(layer: nn.Module, x: Tensor) -> Tensor:
    parameters = {name: torch.empty_like(p, device="meta") for name, p in layer.named_parameters()}
    return torch.func.functional_call(layer, parameters, (x,))
