"""The layers of the batched program: every one computes all clients at once, forward and backward.

A client's activations are laid out (K, H, C, W, B), the batch innermost: a convolution is then one copy (patches) and
one batched matrix product per output row, pooling is three element-wise maxima, and nothing is ever transposed. The
same code trains one client on a CPU core and all of them on a GPU. The tests check every layer against autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn


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
