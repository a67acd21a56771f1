"""Which networks the kernels know, and where their parameters stand: filters channels last, everything on 16 bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from honestly.sim.models.resnet import ResidualBlock
from honestly.sim.train.flat import Layout

SIDE = 32  # height and width of the images
PATCH = 32  # channels that a 3 x 3 patch of an image is padded to
ALIGNED = 8  # numbers: 16 bytes in bfloat16


@dataclass(frozen=True)
class NormalisedConvolution:
    """A convolution without bias and the BatchNorm behind it.

    Attributes:
        inside: input channels (of the first convolution: those of a patch).
        outside: output channels.
        extent: height and width of the filters, 1 or 3.
        stride: 1 or 2.
        side: height and width of the output.
        filters: where the filters begin in the row of parameters, [outside][taps][inside].
        norm: where gamma begins; beta follows.
        running: where the running mean begins in the row of statistics, the running variance follows; None: there are
            none.
        momentum: the share of a mini-batch in the running statistics.
    """

    inside: int
    outside: int
    extent: int
    stride: int
    side: int
    filters: int
    norm: int
    running: int | None = None
    momentum: float = 0.0


@dataclass(frozen=True)
class Residual:
    """Two convolutions and a shortcut, which is the identity if it is None."""

    first: NormalisedConvolution
    second: NormalisedConvolution
    shortcut: NormalisedConvolution | None


@dataclass(frozen=True)
class ResidualNetwork:
    """A residual network as the kernels see it.

    Attributes:
        stem: the first convolution, of patches.
        blocks: the residual blocks.
        linear: where the last layer begins: [classes][channels], then the biases.
        classes: number of classes.
        channels: of the images.
        order: (size,) which number of a plain row of parameters stands at each place; -1: none, it is 0.
        statistics: length of a row of running statistics.
    """

    stem: NormalisedConvolution
    blocks: tuple[Residual, ...]
    linear: int
    classes: int
    channels: int
    order: Tensor
    statistics: int = 0

    @property
    def size(self) -> int:
        """Length of a row of parameters."""
        return len(self.order)

    @property
    def convolutions(self) -> Iterator[NormalisedConvolution]:
        """All of them."""
        yield self.stem
        for block in self.blocks:
            yield from (c for c in (block.first, block.second, block.shortcut) if c is not None)

    @property
    def places(self) -> Tensor:
        """Where each number of a plain row of parameters stands."""
        used = torch.nonzero(self.order >= 0)[:, 0]
        return used[torch.argsort(self.order[used])]

    @classmethod
    def of(cls, module: nn.Module, size: tuple[int, int, int]) -> ResidualNetwork | None:
        """The network behind a module for images (C, H, W), or None if the kernels do not know it."""
        if size[1:] != (SIDE, SIDE) or size[0] * 9 > PATCH or not isinstance(module, nn.Sequential):
            return None
        if any(not p.requires_grad for p in module.parameters()):
            return None
        match list(module):
            case [
                nn.Conv2d() as stem,
                nn.BatchNorm2d() as norm,
                nn.ReLU(),
                *blocks,
                nn.AdaptiveAvgPool2d(output_size=1),
                nn.Flatten(),
                nn.Linear() as linear,
            ]:
                return _Reader(module).read(stem, norm, blocks, linear)
            case _:
                return None


class _Reader:
    """Goes through a module and gives every parameter its place."""

    def __init__(self, module: nn.Module) -> None:
        plain = Layout.of_parameters(module)
        names = {id(p): name for name, p in module.named_parameters()}
        self.start = {key: plain.starts[plain.names.index(name)] for key, name in names.items()}
        statistics = Layout.of_statistics(module)
        self.running = dict(zip(statistics.names, statistics.starts, strict=True))
        self.prefix = {id(part): name for name, part in module.named_modules()}
        self.buffers = len(list(module.buffers()))
        self.statistics = statistics.size
        self.pieces: list[np.ndarray] = []
        self.length = 0

    def read(
        self, stem: nn.Conv2d, norm: nn.BatchNorm2d, blocks: list[nn.Module], linear: nn.Linear
    ) -> ResidualNetwork | None:
        first = self._convolution(stem, norm, SIDE, patches=True)
        residuals: list[Residual] = []
        side = SIDE
        for block in blocks:
            one = self._block(block, side)
            if one is None:
                return None
            side = one.second.side
            residuals.append(one)
        if (
            first is None
            or not residuals
            or "bias" not in dict(linear.named_parameters())
            or not _fits_head(residuals[-1].second, linear)
        ):
            return None
        every = [first, *(c for r in residuals for c in (r.first, r.second, r.shortcut) if c is not None)]
        if self.buffers != 3 * sum(c.running is not None for c in every):
            return None  # buffers of other kinds; BatchNorm has a mean, a variance and a counter
        at = self._put(self._numbers(linear.weight))
        self._put(self._numbers(linear.bias), aligned=False)
        self._align()
        order = torch.from_numpy(np.concatenate(self.pieces))
        return ResidualNetwork(
            first, tuple(residuals), at, linear.out_features, stem.in_channels, order, self.statistics
        )

    def _block(self, block: nn.Module, side: int) -> Residual | None:
        if not isinstance(block, ResidualBlock):
            return None
        match list(block.residual):
            case [
                nn.Conv2d() as a,
                nn.BatchNorm2d() as a_norm,
                nn.ReLU(),
                nn.Conv2d() as b,
                nn.BatchNorm2d() as b_norm,
            ]:
                first = self._convolution(a, a_norm, side // a.stride[0])
                second = self._convolution(b, b_norm, side // a.stride[0])
            case _:
                return None
        cut = None
        if isinstance(block.shortcut, nn.Sequential):
            match list(block.shortcut):
                case [nn.Conv2d() as c, nn.BatchNorm2d() as c_norm]:
                    cut = self._convolution(c, c_norm, side // c.stride[0])
                case _:
                    return None
            # the kernels know a short cut beside a convolution of stride 2
            if cut is None or cut.extent != 1 or cut.stride != 2 or first is None or first.stride != 2:
                return None
        if first is None or second is None or first.extent != 3 or second.extent != 3 or second.stride != 1:
            return None
        if cut is None and (first.stride != 1 or first.inside != second.outside):
            return None
        return Residual(first, second, cut)

    def _convolution(
        self, layer: nn.Conv2d, norm: nn.BatchNorm2d, side: int, *, patches: bool = False
    ) -> NormalisedConvolution | None:
        extent, stride = layer.kernel_size[0], layer.stride[0]
        plain = (
            layer.kernel_size in ((1, 1), (3, 3))
            and layer.stride in ((1, 1), (2, 2))
            and layer.padding == (extent // 2, extent // 2)
            and (layer.dilation, layer.groups, layer.bias) == ((1, 1), 1, None)
            and norm.affine
            and norm.eps == 1e-5
            and (norm.running_mean is None or norm.momentum is not None)
        )
        wide = layer.out_channels in (32, 64, 128, 256, 512, 1024)  # a block of threads always has the same channels
        deep = (patches and extent == 3 and stride == 1) or layer.in_channels % 32 == 0
        if not (plain and wide and deep and side >= 4):
            return None
        numbers = self._numbers(layer.weight).transpose(0, 2, 3, 1).reshape(layer.out_channels, -1)
        inside = layer.in_channels
        if patches:
            inside, extent = PATCH, 1
            numbers = np.pad(numbers, ((0, 0), (0, PATCH - numbers.shape[1])), constant_values=-1)
        filters = self._put(numbers)
        gamma = self._put(self._numbers(norm.weight))
        self._put(self._numbers(norm.bias))
        running = self.running.get(f"{self.prefix[id(norm)]}.running_mean")
        momentum = 0.0 if running is None else float(norm.momentum or 0.0)
        return NormalisedConvolution(
            inside, layer.out_channels, extent, stride, side, filters, gamma, running, momentum
        )

    def _numbers(self, parameter: Tensor) -> np.ndarray:
        """The numbers that a parameter's elements have in a plain row."""
        return self.start[id(parameter)] + np.arange(parameter.numel()).reshape(parameter.shape)

    def _put(self, numbers: np.ndarray, *, aligned: bool = True) -> int:
        if aligned:
            self._align()
        at = self.length
        self.pieces.append(numbers.reshape(-1))
        self.length += numbers.size
        return at

    def _align(self) -> None:
        rest = -self.length % ALIGNED
        self.pieces.append(np.full(rest, -1))
        self.length += rest


def _fits_head(last: NormalisedConvolution, linear: nn.Linear) -> bool:
    """Whether one block of threads takes an image: a thread a channel, and a bit for each of its places."""
    return linear.in_features == last.outside <= 1024 and last.side**2 <= 32 and linear.out_features <= last.outside
