# pyright: basic
"""One mini-batch of every client: forward, backward and the optimiser's step, about 150 launches in one graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from honestly.sim.train.ops import Workspace
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.residual import launches, tiles
from honestly.sim.train.residual.launches import Before, Input, NormalisedOutput, StepClients, Sums
from honestly.sim.train.residual.layout import PATCH, SIDE, NormalisedConvolution, Residual, ResidualNetwork
from honestly.sim.train.sgd import SGD

HALF = torch.bfloat16
AS_READ = 16  # from this side on, BatchNorm and ReLU within a block are applied where they are read


@dataclass(frozen=True)
class ForwardBlock:
    """A block that went forward, from x to z: what its backward pass needs."""

    name: str
    block: Residual
    x: Tensor
    before: Before
    first: NormalisedOutput
    middle: Input
    after: Before
    z: Tensor


class Clones:
    """K clients side by side; parameters, gradients and momentum are rows in the network's own order."""

    def __init__(self, network: ResidualNetwork, K: int, pixels: Pixels, sgd: SGD, batch: int) -> None:
        self.network, self.K, self.pixels, self.sgd, self.B = network, K, pixels, sgd, batch
        device = pixels.images.device
        self.order = network.order.to(device)
        self.theta = torch.zeros((K, network.size), device=device)
        self.grad = torch.zeros_like(self.theta)
        self.velocity = torch.zeros_like(self.theta)
        self.filters = torch.zeros((K, network.size), dtype=HALF, device=device)
        self.loss = torch.zeros(K, device=device)
        self.start_statistics = torch.zeros(network.statistics, device=device)
        self.statistics = torch.zeros((K, max(network.statistics, 1)), device=device)
        self.space, self.half, self.bits = Workspace(), Workspace(), Workspace()
        self.sign = torch.empty(0, dtype=torch.uint8, device=device)
        self.beside = torch.cuda.Stream(device) if device.type == "cuda" else None
        every = list(network.convolutions)
        self.sums = torch.empty(max(tiles.sums_size(K, batch, c) for c in every), device=device)
        self.parts = torch.empty(max(tiles.parts_size(K, batch, c) for c in every), device=device)

    def begin(self, start: Tensor) -> None:
        """Every client starts from the global model, and from `start_statistics`, with a fresh optimiser."""
        row = torch.cat((start, start.new_zeros(1)))[self.order]  # the last one is what -1 means
        self.theta.copy_(row.expand_as(self.theta))
        self.filters.copy_(self.theta)
        self.velocity.zero_()
        self.loss.zero_()
        self.statistics[:, : self.network.statistics] = self.start_statistics

    def models(self) -> Tensor:
        """(K, d): the clients' parameters as plain rows."""
        return self.theta[:, self.network.places.to(self.theta.device)]

    def scheduled_step(self, schedule: Mapping[str, Tensor], t: Tensor) -> None:
        """Step number ``t`` (on the device) of the schedules (T, K, ...), and ``t`` moves on."""
        at = StepClients(self.K, self.B, schedule["weights"], t)
        x = self._patches(at, schedule)
        stem = self._convolve(at, "stem", self.network.stem, x)
        z = self._activations("stem.z", self.network.stem)
        launches.activate(at, stem, z)
        before = Before(stem)
        passed: list[ForwardBlock] = []
        for number, block in enumerate(self.network.blocks):
            one = self._forward(at, f"{number}", block, z, before)
            passed.append(one)
            before, z = one.after, one.z
        g, sums = self._head(at, schedule, z, before)
        for one in reversed(passed):
            g, sums = self._backward(at, one, g, sums)
        gradient = self._of_norm(at, "stem", stem, g, sums, 1)
        self._weight_gradient(at, self.network.stem, x, gradient)
        if self.beside is not None:
            torch.cuda.current_stream().wait_stream(self.beside)
        self._descend(at, schedule)
        t.add_(1)

    def _activations(self, name: str, c: NormalisedConvolution) -> Tensor:
        return self.half(name, (self.K, self.B, c.side, c.side, c.outside), self.filters)

    def _patches(self, at: StepClients, schedule: Mapping[str, Tensor]) -> Tensor:
        p, flips, crops = self.pixels, schedule.get("flips"), schedule.get("crops")
        x = self.half("x", (self.K, self.B, SIDE, SIDE, PATCH), self.filters)
        defines = [
            "ENDS", "PATCHES", f"CHANNELS {self.network.channels}", f"HEIGHT {SIDE}", f"WIDTH {SIDE}",
            f"CROP {p.crop}", *["FLIPS"] * (flips is not None), *["CROPS"] * (crops is not None),
        ]  # fmt: skip
        samples = schedule["samples"]
        at.launch(
            "patches", defines, (self.B, 1), 256,
            [p.images, p.rows, samples, samples if flips is None else flips, samples if crops is None else crops,
             p.scale, p.shift, x, at.weights, at.t, self.K],
        )  # fmt: skip
        return x

    def _convolve(self, at: StepClients, name: str, c: NormalisedConvolution, x: Input) -> NormalisedOutput:
        """A convolution and the statistics of its BatchNorm."""
        y = self._activations(f"{name}.y", c)
        norm = self.space(f"{name}.norm", (self.K, 4, c.outside), self.theta)
        sums = launches.convolve(at, c, x, self.filters, y, self.sums)
        launches.make_norm(at, c, sums, self.theta, norm, self.statistics)
        return NormalisedOutput(c, y, norm)

    def _forward(self, at: StepClients, name: str, block: Residual, x: Tensor, before: Before) -> ForwardBlock:
        first = self._convolve(at, f"{name}.first", block.first, x)
        middle: Input = first
        if block.first.side < AS_READ:
            middle = self._activations(f"{name}.middle", block.first)
            launches.activate(at, first, middle)
        second = self._convolve(at, f"{name}.second", block.second, middle)
        cut = None
        if block.shortcut is not None:
            cut = self._convolve(at, f"{name}.shortcut", block.shortcut, x)
        z = self._activations(f"{name}.z", block.second)
        signs = self.bits(f"{name}.signs", (*z.shape[:-1], z.shape[-1] // 8), self.sign)
        launches.activate(at, second, z, other=x if cut is None else cut, signs=signs)
        return ForwardBlock(name, block, x, before, first, middle, Before(second, signs, cut), z)

    def _of_norm(self, at: StepClients, name: str, of: NormalisedOutput, g: Tensor, sums: Sums, which: int) -> Tensor:
        """The gradient of a convolution's output from that of its BatchNorm's."""
        back = self.space("back", (self.K, 2, of.convolution.outside), self.theta)
        launches.make_norm_gradient(at, of, sums, which, self.grad, back)
        out = self._activations(f"{name}.gradient", of.convolution)
        launches.norm_gradient(at, of, g, back, out)
        return out

    def _weight_gradient(self, at: StepClients, c: NormalisedConvolution, x: Input, gradient: Tensor) -> None:
        """On a stream of its own: nobody waits for it, and it fills what other kernels leave idle."""
        if self.beside is None:
            launches.weight_gradient(at, c, x, gradient, self.grad, self.parts)
            return
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            launches.weight_gradient(at, c, x, gradient, self.grad, self.parts)

    def _backward(self, at: StepClients, passed: ForwardBlock, g: Tensor, sums: Sums) -> tuple[Tensor, Sums]:
        """From the gradient of the block's sum, cut off by ReLU, to that of the sum before it."""
        name, block, after = passed.name, passed.block, passed.after
        cut = None
        if block.shortcut is not None and after.shortcut is not None:
            cut = self._of_norm(at, f"{name}.shortcut", after.shortcut, g, sums, 2)
            self._weight_gradient(at, block.shortcut, passed.x, cut)
        gradient = self._of_norm(at, f"{name}.second", after.main, g, sums, 1)
        self._weight_gradient(at, block.second, passed.middle, gradient)
        inner = self._activations("inner", block.first)
        before = Before(passed.first)
        sums = launches.convolve_back(at, block.second, gradient, self.filters, before, inner, self.sums)
        gradient = self._of_norm(at, f"{name}.first", passed.first, inner, sums, 1)
        self._weight_gradient(at, block.first, passed.x, gradient)
        out = self._activations(f"{name}.outer", passed.before.main.convolution)
        sums = launches.convolve_back(
            at, block.first, gradient, self.filters, passed.before, out, self.sums,
            add=None if cut is not None else g,
            shortcut=None if cut is None or block.shortcut is None else (block.shortcut, cut),
        )  # fmt: skip
        return out, sums

    def _head(self, at: StepClients, schedule: Mapping[str, Tensor], z: Tensor, last: Before) -> tuple[Tensor, Sums]:
        """Loss and gradient of the last layer; the gradient of the last block's sum."""
        c, K, B, classes = last.main.convolution, self.K, self.B, self.network.classes
        g = self._activations("head", c)
        cut = last.shortcut
        many = 2 if cut is None else 3
        sums = self.sums[: K * B * many * c.outside].view(K, B, 1, many, c.outside)
        means = self.space("means", (K, B, c.outside), self.theta)
        errors, losses = (self.space(n, (K, B, m), self.theta) for n, m in (("errors", classes), ("losses", 1)))
        defines = ["ENDS", "HEAD", f"CHANNELS {c.outside}", f"CLASSES {classes}", f"PLANE_SIZE {c.side**2}"]
        defines += ["SHORTCUT_SUMS"] * (cut is not None)
        linear, grad = self.theta[:, self.network.linear :], self.grad[:, self.network.linear :]
        at.launch(
            "head", defines, (B, 1), c.outside,
            [z, last.main.y, last.main.norm, *([at.weights] * 2 if cut is None else [cut.y, cut.norm]), linear, g,
             sums, means, errors, losses, self.pixels.labels, schedule["samples"], at.weights, at.t,
             self.theta.stride(0), K],
        )  # fmt: skip
        at.launch(
            "head_gradient", defines, (classes, 1), c.outside,
            [means, errors, losses, grad, self.loss, at.weights, at.t, self.grad.stride(0), K],
        )  # fmt: skip
        return g, Sums(sums, 1, 1)

    def _descend(self, at: StepClients, schedule: Mapping[str, Tensor]) -> None:
        s, size = self.sgd, self.network.size
        defines = [
            "ENDS", "STEP", f"LEARNING_RATE {float(s.lr)!r}f", f"MOMENTUM {float(s.momentum)!r}f",
            f"WEIGHT_DECAY {float(s.weight_decay)!r}f", *["HEAVY_BALL"] * bool(s.momentum), *["NESTEROV"] * s.nesterov,
        ]  # fmt: skip
        at.launch(
            "descend", defines, (-(-size // 2048), 1), 256,
            [self.theta, self.grad, self.velocity, self.filters, schedule["keep"], at.weights, at.t, size, self.K],
        )  # fmt: skip
