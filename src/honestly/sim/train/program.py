"""Small models as one batched program: every layer computes all clients at once, forward and backward.

A client's activations are laid out (K, H, C, W, B), the batch innermost: a convolution is then one copy (patches) and
one batched matrix product per output row, pooling is three element-wise maxima, and nothing is ever transposed. The
same code trains one client on a CPU core and all of them on a GPU.

`nn.Sequential` models made of the layers in `compile_program` can be run this way; the tests check every layer
against autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from honestly.sim.train.flat import Layout


class Op(Protocol):
    """One layer: `forward` keeps what `backward` needs; `backward` writes the parameters' gradient and passes on g."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        ...

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the layer's input, or None if nobody needs it (``inward`` is False)."""
        ...


def positive_part_of(g: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """`g` where x > 0, else 0. (Far faster on a CPU than any way through a boolean mask.)"""
    if out is None:
        return torch.ops.aten.threshold_backward(g, x, 0)
    return torch.ops.aten.threshold_backward(g, x, 0, grad_input=out)


class Workspace:
    """Memory that an op uses again at every step: fresh pages cost a CPU more than the arithmetic on them."""

    def __init__(self) -> None:
        self.blocks: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Uninitialised memory of that shape."""
        size = math.prod(shape)
        block = self.blocks.get(name)
        if block is None or block.numel() < size:
            block = self.blocks[name] = torch.empty(size, dtype=like.dtype, device=like.device)
        return block[:size].view(tuple(shape))


@dataclass
class Convolution:
    """`y[m] = sum_{c,i,j} W[m,c,i,j] x[c, .+i, .+j]`, stride 1, without bias."""

    weight: Tensor  # (K, M, C, R, S)
    grad: Tensor
    padding: tuple[int, int] = (0, 0)
    saved: tuple[Tensor, tuple[int, ...]] | None = None
    space: Workspace = field(default_factory=Workspace)

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        p, q = self.padding
        if p or q:
            x = nn.functional.pad(x, (0, 0, q, q, 0, 0, p, p))
        x = x.contiguous()
        K, H, C, W, B = x.shape
        M, _, R, S = self.weight.shape[1:]
        h, w = H - R + 1, W - S + 1
        sK, sH, sC, sW, _ = x.stride()
        # row y of the output sees rows y .. y + R of the input: patches are a view with repeated strides, copied once
        windows = x.as_strided((K, h, C, R, S, w, B), (sK, sH, sC, sH, sW, sW, 1))
        patches = self.space("patches", windows.shape, x).copy_(windows).view(K * h, C * R * S, w * B)
        self.saved = (patches, (K, H, C, W, B))
        y = self.space("y", (K * h, M, w * B), x)
        return torch.bmm(self.rows(h), patches, out=y).view(K, h, M, w, B)

    def rows(self, h: int, *, transposed: bool = False) -> Tensor:
        """The weights once for each output row: (K h, M, C R S), or (K h, C R S, M)."""
        K, M = self.weight.shape[:2]
        flat = self.weight.reshape(K, M, -1)
        if transposed:
            flat = flat.transpose(1, 2).contiguous()
        each = flat[:, None].expand(K, h, *flat.shape[1:])
        return each[0] if K == 1 else each.reshape(K * h, *flat.shape[1:])

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input."""
        assert self.saved is not None
        patches, (K, H, C, W, B) = self.saved
        self.saved = None
        M, _, R, S = self.weight.shape[1:]
        h, w = H - R + 1, W - S + 1
        g = g.reshape(K * h, M, w * B)
        if C * R * S > 64:  # a matrix product of this shape is twice as fast on a CPU with the longer side on the left
            product = torch.bmm(patches, g.transpose(1, 2)).view(K, h, C * R * S, M).sum(dim=1)
            self.grad.copy_(product.transpose(1, 2).reshape(K, M, C, R, S))
        else:
            torch.sum(torch.bmm(g, patches.transpose(1, 2)).view(K, h, M, C, R, S), dim=1, out=self.grad)
        if not inward:
            return None
        columns = self.space("patches", (K * h, C * R * S, w * B), g)  # the patches are no longer needed
        torch.bmm(self.rows(h, transposed=True), g, out=columns)
        columns = columns.view(K, h, C, R, S, w, B)
        gx = self.space("gx", (K, H, C, W, B), g).zero_()
        for i in range(R):
            for j in range(S):
                gx[:, i : i + h, :, j : j + w] += columns[:, :, :, i, j]
        p, q = self.padding
        return gx[:, p : H - p, :, q : W - q] if p or q else gx


@dataclass
class ChannelBias:
    """`y[c] = x[c] + b[c]`."""

    bias: Tensor  # (K, C)
    grad: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        return x.add_(self.bias[:, None, :, None, None])

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input."""
        torch.sum(g, dim=(1, 3, 4), out=self.grad)
        return g


@dataclass
class MaxPool:
    """The largest of each 2 x 2 block; among equals the first in reading order, as `nn.MaxPool2d` does."""

    saved: tuple[Tensor, Tensor, Tensor, tuple[int, ...]] | None = None
    space: Workspace = field(default_factory=Workspace)

    @staticmethod
    def _corners(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        H, W = x.shape[1] // 2 * 2, x.shape[3] // 2 * 2  # an odd last row or column is left out
        x = x[:, :H, :, :W]
        return x[:, 0::2, :, 0::2], x[:, 0::2, :, 1::2], x[:, 1::2, :, 0::2], x[:, 1::2, :, 1::2]

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        a, b, c, d = self._corners(x)
        upper = torch.maximum(a, b, out=self.space("upper", a.shape, x))
        lower = torch.maximum(c, d, out=self.space("lower", a.shape, x))
        y = torch.maximum(upper, lower, out=self.space("y", a.shape, x))
        # positive where the second of each pair wins
        right_up = torch.sub(b, a, out=self.space("right_up", a.shape, x))
        right_low = torch.sub(d, c, out=self.space("right_low", a.shape, x))
        self.saved = (right_up, right_low, lower.sub_(upper), tuple(x.shape))
        return y

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input."""
        assert self.saved is not None
        right_up, right_low, low, shape = self.saved
        self.saved = None
        gx = self.space("gx", shape, g)
        if shape[1] % 2 or shape[3] % 2:
            gx.zero_()
        a, b, c, d = self._corners(gx)
        g_low = positive_part_of(g, low, out=low)
        g_up = torch.sub(g, g_low, out=self.space("upper", g.shape, g))
        positive_part_of(g_up, right_up, out=b)
        torch.sub(g_up, b, out=a)
        positive_part_of(g_low, right_low, out=d)
        torch.sub(g_low, d, out=c)
        return gx


@dataclass
class Rectifier:
    """`y = max(x, 0)`."""

    saved: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        self.saved = x.relu_()
        return self.saved

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input."""
        assert self.saved is not None
        y, self.saved = self.saved, None
        return positive_part_of(g, y, out=y)


@dataclass
class Flatten:
    """(K, H, C, W, B) -> (K, C H W, B), in PyTorch's order of features."""

    saved: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        K, H, C, W, B = self.saved = tuple(x.shape)
        return x.transpose(1, 2).reshape(K, C * H * W, B)

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input."""
        K, H, C, W, B = self.saved
        return g.view(K, C, H, W, B).transpose(1, 2)


@dataclass
class Dense:
    """`y = W x + b`."""

    weight: Tensor  # (K, M, F)
    grad: Tensor
    bias: Tensor | None = None  # (K, M)
    bias_grad: Tensor | None = None
    saved: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        self.saved = x
        if self.bias is None:
            return torch.bmm(self.weight, x)
        return torch.baddbmm(self.bias[:, :, None], self.weight, x)

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input."""
        assert self.saved is not None
        x, self.saved = self.saved, None
        self.grad.copy_(torch.bmm(g, x.transpose(1, 2)))
        if self.bias_grad is not None:
            torch.sum(g, dim=2, out=self.bias_grad)
        return torch.bmm(self.weight.transpose(1, 2), g) if inward else None


@dataclass
class Program:
    """A model for K clients whose parameters are the rows of ``theta`` and whose gradients are the rows of ``grad``."""

    theta: Tensor  # (K, d)
    grad: Tensor  # (K, d)
    ops: Sequence[Op] = field(default_factory=tuple)

    def logits(self, x: Tensor) -> Tensor:
        """(K, classes, B) from images (K, H, C, W, B)."""
        for op in self.ops:
            x = op.forward(x)
        return x

    def loss_and_gradient(self, x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """(K,) weighted cross-entropy; its gradient is left in ``grad``.

        Args:
            x: images (K, H, C, W, B).
            labels: (K, B) integers.
            weights: (K, B): 1/n for the n samples of a batch, 0 for its padding.
        """
        log_p = torch.log_softmax(self.logits(x), dim=1)
        chosen = labels[:, None, :]
        loss = -(log_p.gather(1, chosen)[:, 0] * weights).sum(1)
        g: Tensor | None = log_p.exp_() * weights[:, None, :]
        assert g is not None
        g.scatter_add_(1, chosen, -weights[:, None, :])
        for number in range(len(self.ops) - 1, -1, -1):
            assert g is not None
            g = self.ops[number].backward(g, inward=number > 0)
        return loss


def compile_program(
    model: nn.Module, layout: Layout, theta: Tensor, grad: Tensor, *, fused: bool | None = None
) -> Program | None:
    """The model as a batched program over the rows of ``theta``, or None if it has a layer that is not known here.

    ``fused`` makes one op of convolution, pooling, bias and ReLU. By default it does where that is faster: on a GPU by
    the Triton kernels of `honestly.sim.train.fused`, for one client on a CPU in rows (`honestly.sim.train.rows`).
    """
    layers = _layers_of(model)
    if layers is None:
        return None
    ops: list[Any] = []
    for name, layer in layers:
        made = _op(name, layer, layout, theta, grad)
        if made is None:
            return None
        ops += made
    ops = _pool_early(ops)
    if fused is None:
        fused = find_spec("triton") is not None if theta.is_cuda else len(theta) == 1
    if fused and (theta.is_cuda or len(theta) > 1):
        from honestly.sim.train.fused import fuse

        ops = fuse(ops)
    elif fused:
        from honestly.sim.train.rows import by_rows

        ops = by_rows(ops)
    return Program(theta, grad, tuple(ops))


def _layers_of(model: nn.Module) -> list[tuple[str, nn.Module]] | None:
    if type(model) is not nn.Sequential:
        return None
    return list(model.named_children())


def _op(name: str, layer: nn.Module, layout: Layout, theta: Tensor, grad: Tensor) -> list[Any] | None:
    def of(parameter: str) -> tuple[Tensor, Tensor]:
        return layout.view(theta, f"{name}.{parameter}"), layout.view(grad, f"{name}.{parameter}")

    if type(layer) is nn.Conv2d:
        plain = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
        if not plain or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            return None
        convolution = Convolution(*of("weight"), padding=(int(layer.padding[0]), int(layer.padding[1])))
        return [convolution, ChannelBias(*of("bias"))] if f"{name}.bias" in layout.names else [convolution]
    if type(layer) is nn.MaxPool2d:
        halves = layer.kernel_size in (2, (2, 2)) and layer.stride in (2, (2, 2))
        plain = halves and layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and not layer.ceil_mode
        return [MaxPool()] if plain else None
    if type(layer) is nn.ReLU:
        return [Rectifier()]
    if type(layer) is nn.Flatten:
        return [Flatten()] if layer.start_dim == 1 and layer.end_dim == -1 else None
    if type(layer) is nn.Linear:
        return [Dense(*of("weight"), *(of("bias") if f"{name}.bias" in layout.names else ()))]
    if type(layer) is nn.Identity:
        return []
    return None


def _pool_early(ops: list[Any]) -> list[Any]:
    """`pool(relu(x + b)) = relu(pool(x) + b)`: both are monotone, so pooling first does a quarter of the work."""
    moved = True
    while moved:
        moved = False
        for i in range(len(ops) - 1):
            if isinstance(ops[i], ChannelBias | Rectifier) and isinstance(ops[i + 1], MaxPool):
                ops[i], ops[i + 1] = ops[i + 1], ops[i]
                moved = True
    return ops
