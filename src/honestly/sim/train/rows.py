"""Convolution, pooling, bias and ReLU of one client on a CPU core, two output rows at a time: all of it in the cache.

The plain `ops` write every patch of every image to memory and read it back twice. Here two rows of patches
are made, multiplied and pooled before the next two; backward they are made again, which is cheaper than to fetch them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from honestly.sim.train.ops import ChannelBias, Convolution, MaxPool, Rectifier, Workspace, positive_part_of


@dataclass
class RowsConvolutionPool:
    """A convolution, 2 x 2 pooling, bias and ReLU of one client (K = 1) as one op."""

    convolution: Convolution
    bias: ChannelBias | None = None
    relu: bool = False
    space: Workspace = field(default_factory=Workspace)
    saved: tuple[Tensor, ...] | None = None

    def _shapes(self, x: Tensor) -> tuple[int, ...]:
        """C, R, S, M; height and width of the output before and after pooling; B."""
        _, H, C, W, B = x.shape
        M, _, R, S = self.convolution.weight.shape[1:]
        return C, R, S, M, (H - R + 1) // 2, W - S + 1, (W - S + 1) // 2, B

    def _workplace(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """Windows of the input, memory for two rows of patches and of outputs, and the four corners in the latter."""
        C, R, S, M, h, w, v, B = self._shapes(x)
        sH, sC, sW, _ = x[0].stride()
        windows = x[0].as_strided((2 * h, C, R, S, w, B), (sH, sC, sH, sW, sW, 1))
        patches = self.space("patches", (2, C, R, S, w, B), x)
        dense = self.space("dense", (2, M, w, B), x)
        corners = tuple(dense[q, :, s : 2 * v : 2] for q in (0, 1) for s in (0, 1))
        return windows, patches, dense, corners

    def forward(self, x: Tensor) -> Tensor:
        """(1, h, M, v, B), pooled."""
        p, q = self.convolution.padding
        if p or q:
            x = nn.functional.pad(x, (0, 0, q, q, 0, 0, p, p))
        x = x.contiguous()
        C, R, S, M, h, w, v, B = self._shapes(x)
        windows, patches, dense, (a, b, c, d) = self._workplace(x)
        weights = self.convolution.weight.reshape(1, M, C * R * S).expand(2, M, C * R * S)
        y, right_up, right_low, low = (
            self.space(name, (h, M, v, B), x) for name in ("y", "right_up", "right_low", "low")
        )
        upper, lower = self.space("upper", (M, v, B), x), self.space("lower", (M, v, B), x)
        flat, product = patches.view(2, C * R * S, w * B), dense.view(2, M, w * B)
        for i in range(h):
            patches.copy_(windows[2 * i : 2 * i + 2])
            torch.bmm(weights, flat, out=product)
            torch.maximum(a, b, out=upper)
            torch.maximum(c, d, out=lower)
            torch.maximum(upper, lower, out=y[i])
            # positive where the second of each pair wins
            torch.sub(b, a, out=right_up[i])
            torch.sub(d, c, out=right_low[i])
            torch.sub(lower, upper, out=low[i])
        y = y[None]
        if self.bias is not None:
            y = self.bias.forward(y)
        if self.relu:
            y = y.relu_()
        self.saved = (x, y, right_up, right_low, low)
        return y

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input; those of weights and bias are written to their places."""
        assert self.saved is not None
        x, y, right_up, right_low, low = self.saved
        self.saved = None
        C, R, S, M, h, w, v, B = self._shapes(x)
        if self.relu:
            g = positive_part_of(g, y, out=y)
        if self.bias is not None:
            self.bias.backward(g, inward=True)
        windows, patches, dense, (a, b, c, d) = self._workplace(x)
        if w % 2:
            dense.zero_()
        up, down = self.space("upper", (M, v, B), x), self.space("lower", (M, v, B), x)
        flat, upward = patches.view(2, C * R * S, w * B), dense.view(2, M, w * B)
        wide = C * R * S > 64  # twice as fast with the longer side on the left
        total = self.space("total", (2, C * R * S, M) if wide else (2, M, C * R * S), x).zero_()
        turned = self.convolution.weight.reshape(1, M, C * R * S).transpose(1, 2).contiguous().expand(2, -1, -1)
        gx = self.space("gx", tuple(x.shape), x).zero_() if inward else None
        for i in range(h):
            gi = g[0, i]
            positive_part_of(gi, low[i], out=down)
            torch.sub(gi, down, out=up)
            positive_part_of(up, right_up[i], out=b)
            torch.sub(up, b, out=a)
            positive_part_of(down, right_low[i], out=d)
            torch.sub(down, d, out=c)
            patches.copy_(windows[2 * i : 2 * i + 2])
            if wide:
                total.baddbmm_(flat, upward.transpose(1, 2))
            else:
                total.baddbmm_(upward, flat.transpose(1, 2))
            if gx is not None:
                torch.bmm(turned, upward, out=flat)  # what each window gives to its pixels, in the patches' place
                for q in (0, 1):
                    given = patches[q].transpose(0, 1)  # (R, C, S, w, B)
                    for s in range(S):
                        gx[0, 2 * i + q : 2 * i + q + R, :, s : s + w] += given[:, :, s]
        whole = total[0] + total[1]
        self.convolution.grad.copy_((whole.t() if wide else whole).reshape(1, M, C, R, S))
        if gx is None:
            return None
        p, q = self.convolution.padding
        return gx[:, p : x.shape[1] - p, :, q : x.shape[3] - q] if p or q else gx


def by_rows(ops: list[Any]) -> list[Any]:
    """Replace every convolution that is followed by pooling (then bias, then ReLU) by one op that works in rows."""
    found: list[Any] = []
    while ops:
        if len(ops) > 1 and isinstance(ops[0], Convolution) and isinstance(ops[1], MaxPool):
            one, rest = RowsConvolutionPool(ops[0]), ops[2:]
            if rest and isinstance(rest[0], ChannelBias):
                one.bias, rest = rest[0], rest[1:]
            if rest and isinstance(rest[0], Rectifier):
                one.relu, rest = True, rest[1:]
            found.append(one)
            ops = rest
        else:
            found.append(ops[0])
            ops = ops[1:]
    return found
