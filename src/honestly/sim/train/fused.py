# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportIndexIssue=false, reportUnknownLambdaType=false
"""Convolution, pooling, bias and ReLU of all clients in one GPU kernel, forward and backward (Triton).

The plain `ops` write every patch of every image to memory and read it back. Here one program computes a
pooled output for all channels and 128 images from the input itself and notes which of the four corners won; backward,
only the winners' windows are read. Same arithmetic in float32; the tests compare both (in Triton's interpreter where
there is no GPU).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from honestly.sim.train.ops import ChannelBias, Convolution, MaxPool, Rectifier, Workspace

DEAD = tl.constexpr(4)  # the code of a pooled output that ReLU set to 0; 0 .. 3 are the corners in reading order


@triton.jit
def _forward(
    x, w, bias, y, code, H, W, B, h, v, stride_w, stride_bias,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """y[k,i,o,j,b] = relu(max of the 2 x 2 block of the convolution + bias); one program for (k, i, j)."""
    cell = tl.program_id(0)
    j = cell % v
    i = (cell // v) % h
    k = (cell // (v * h)).to(tl.int64)
    o = tl.arange(0, MP)
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    has_o, has_b = o < M, b < B
    a = tl.zeros((MP, BB), tl.float32)
    c01 = tl.zeros((MP, BB), tl.float32)
    c10 = tl.zeros((MP, BB), tl.float32)
    c11 = tl.zeros((MP, BB), tl.float32)
    row = C * W * B
    for c in range(C):
        for r in range(R):
            for s in range(S):
                f = tl.load(w + k * stride_w + o * (C * R * S) + (c * R + r) * S + s, mask=has_o, other=0.0)[:, None]
                p = x + k * H * row + ((2 * i + r) * C + c) * W * B + (2 * j + s) * B + b
                a += f * tl.load(p, mask=has_b, other=0.0)[None, :]
                c01 += f * tl.load(p + B, mask=has_b, other=0.0)[None, :]
                c10 += f * tl.load(p + row, mask=has_b, other=0.0)[None, :]
                c11 += f * tl.load(p + row + B, mask=has_b, other=0.0)[None, :]
    corner = tl.zeros((MP, BB), tl.int32)
    corner = tl.where(c01 > a, 1, corner)
    a = tl.where(c01 > a, c01, a)
    corner = tl.where(c10 > a, 2, corner)
    a = tl.where(c10 > a, c10, a)
    corner = tl.where(c11 > a, 3, corner)
    a = tl.where(c11 > a, c11, a)
    if BIAS:
        a += tl.load(bias + k * stride_bias + o, mask=has_o, other=0.0)[:, None]
    if RELU:
        corner = tl.where(a <= 0.0, DEAD, corner)
        a = tl.where(a <= 0.0, 0.0, a)
    q = ((k * h + i) * M + o[:, None]) * v * B + j * B + b[None, :]
    inside = has_o[:, None] & has_b[None, :]
    tl.store(y + q, a, mask=inside)
    tl.store(code + q, corner.to(tl.uint8), mask=inside)


@triton.jit
def _add(total, bias, g, code, q, inside, w00, w01, w10, w11):
    """Add one channel's gradient times the windows of the corners that won."""
    up = tl.load(g + q, mask=inside, other=0.0)
    won = tl.load(code + q, mask=inside, other=4)
    total += tl.where(won == 0, up, 0.0)[None, :] * w00
    total += tl.where(won == 1, up, 0.0)[None, :] * w01
    total += tl.where(won == 2, up, 0.0)[None, :] * w10
    total += tl.where(won == 3, up, 0.0)[None, :] * w11
    bias += tl.where(won < 4, up, 0.0)
    return total, bias


@triton.jit
def _keep(total, bias, parts, bias_parts, place, m, c, t, M: tl.constexpr, C: tl.constexpr, T: tl.constexpr):
    """Write what one channel's gradient came to."""
    reach = tl.where(m < M, T, 0)
    tl.store(parts + ((place * M + m) * C + c) * T + t, tl.sum(total, axis=1), mask=t < reach)
    if (c == 0) & (m < M):
        tl.store(bias_parts + place * M + m, tl.sum(bias, axis=0))


@triton.jit
def _weight_gradient(
    x, g, code, parts, bias_parts, H, W, B, h, v,
    C: tl.constexpr, M: tl.constexpr, R: tl.constexpr, S: tl.constexpr, TP: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """parts[k,i,m,c,:] = sum over j and b of g times the winners' windows; one program for k, i, two m and c."""
    program = tl.program_id(0)
    c = tl.program_id(1)
    pairs = (M + 1) // 2
    m = 2 * (program % pairs)
    i = (program // pairs) % h
    k = (program // (pairs * h)).to(tl.int64)
    t = tl.arange(0, TP)
    lane = tl.arange(0, BB)
    at = ((t // S) * C * W + t % S)[:, None] * B + lane[None, :]
    row = C * W * B
    total0 = tl.zeros((TP, BB), tl.float32)
    total1 = tl.zeros((TP, BB), tl.float32)
    bias0 = tl.zeros((BB,), tl.float32)
    bias1 = tl.zeros((BB,), tl.float32)
    for j in range(v):
        for first in range(0, B, BB):
            inside = first + lane < B
            taps = (t < R * S)[:, None] & inside[None, :]
            p = x + k * H * row + 2 * i * row + c * W * B + 2 * j * B + first
            w00 = tl.load(p + at, mask=taps, other=0.0)
            w01 = tl.load(p + B + at, mask=taps, other=0.0)
            w10 = tl.load(p + row + at, mask=taps, other=0.0)
            w11 = tl.load(p + row + B + at, mask=taps, other=0.0)
            q = (((k * h + i) * M + m) * v + j) * B + first + lane
            total0, bias0 = _add(total0, bias0, g, code, q, inside, w00, w01, w10, w11)
            also = first + lane < tl.where(m + 1 < M, B, 0)
            total1, bias1 = _add(total1, bias1, g, code, q + v * B, also, w00, w01, w10, w11)
    _keep(total0, bias0, parts, bias_parts, k * h + i, m, c, t, M, C, R * S)
    _keep(total1, bias1, parts, bias_parts, k * h + i, m + 1, c, t, M, C, R * S)


@triton.jit
def _unpool(g, code, dense, size, M, h, v, full_h, full_w, B, BLOCK: tl.constexpr):
    """The gradient of the convolution's output: g at the corner that won, 0 at the other three."""
    q = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = q < size
    up = tl.load(g + q, mask=inside, other=0.0)
    won = tl.load(code + q, mask=inside, other=4)
    b = q % B
    j = (q // B) % v
    o = (q // (B * v)) % M
    i = (q // (B * v * M)) % h
    k = q // (B * v * M * h)
    row = M * full_w * B
    p = dense + ((k * full_h + 2 * i) * M + o) * full_w * B + 2 * j * B + b
    tl.store(p, tl.where(won == 0, up, 0.0), mask=inside)
    tl.store(p + B, tl.where(won == 1, up, 0.0), mask=inside)
    tl.store(p + row, tl.where(won == 2, up, 0.0), mask=inside)
    tl.store(p + row + B, tl.where(won == 3, up, 0.0), mask=inside)


@triton.jit
def _fold(
    columns, gx, H, W, B, h, w, C: tl.constexpr, R: tl.constexpr, S: tl.constexpr, BB: tl.constexpr
):  # fmt: skip
    """gx[k,y,c,x,b] = sum over the windows that hold (y, x) of what each gives it; one program for (k, y, c, x)."""
    cell = tl.program_id(0)
    x = cell % W
    c = (cell // W) % C
    y = (cell // (W * C)) % H
    k = (cell // (W * C * H)).to(tl.int64)
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    has_b = b < B
    total = tl.zeros((BB,), tl.float32)
    for r in range(R):
        for s in range(S):
            i = y - r
            j = x - s
            reach = tl.where((i >= 0) & (i < h) & (j >= 0) & (j < w), B, 0)  # no image of a window outside
            p = columns + (((((k * h + i) * C + c) * R + r) * S + s) * w + j) * B + b
            total += tl.load(p, mask=b < reach, other=0.0)
    tl.store(gx + cell.to(tl.int64) * B + b, total, mask=has_b)


@dataclass
class ConvolutionPool:
    """A convolution without padding, 2 x 2 pooling, bias and ReLU as one op."""

    convolution: Convolution
    bias: ChannelBias | None = None
    relu: bool = False
    space: Workspace = field(default_factory=Workspace)
    saved: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(K, h, M, w, B), pooled."""
        x = x.contiguous()
        K, H, C, W, B = x.shape
        weight = self.convolution.weight
        M, _, R, S = weight.shape[1:]
        h, v = (H - R + 1) // 2, (W - S + 1) // 2
        y = self.space("y", (K, h, M, v, B), x)
        code = self._codes(y)
        bias = weight if self.bias is None else self.bias.bias
        block = _block(B)
        _forward[(K * h * v, triton.cdiv(B, block))](
            x, weight, bias, y, code, H, W, B, h, v, weight.stride(0), bias.stride(0),
            C=C, M=M, MP=triton.next_power_of_2(M), R=R, S=S,
            BIAS=self.bias is not None, RELU=self.relu, BB=block,
        )  # fmt: skip
        self.saved = (x, code)
        return y

    def _codes(self, y: Tensor) -> Tensor:
        held = self.space.blocks.get("code")
        if held is None or held.numel() < y.numel():
            held = self.space.blocks["code"] = torch.empty(y.numel(), dtype=torch.uint8, device=y.device)
        return held[: y.numel()].view(y.shape)

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input; those of weights and bias are written to their places."""
        assert self.saved is not None
        x, code = self.saved
        self.saved = None
        g = g.contiguous()
        K, H, C, W, B = x.shape
        weight = self.convolution.weight
        M, _, R, S = weight.shape[1:]
        h, v = code.shape[1], code.shape[3]
        parts = self.space("parts", (K, h, M, C, R, S), x)
        bias_parts = self.space("bias_parts", (K, h, M), x)
        _weight_gradient[(K * h * ((M + 1) // 2), C)](
            x, g, code, parts, bias_parts, H, W, B, h, v,
            C=C, M=M, R=R, S=S, TP=triton.next_power_of_2(R * S), BB=_block(B),
        )  # fmt: skip
        torch.sum(parts, dim=1, out=self.convolution.grad)
        if self.bias is not None:
            torch.sum(bias_parts, dim=1, out=self.bias.grad)
        return self._inward(self._dense(g, code, x), x) if inward else None

    def _dense(self, g: Tensor, code: Tensor, x: Tensor) -> Tensor:
        """The gradient of the convolution's output."""
        K, H, _, W, B = x.shape
        M, _, R, S = self.convolution.weight.shape[1:]
        h, w = H - R + 1, W - S + 1
        dense = self.space("dense", (K, h, M, w, B), x)
        if h % 2 or w % 2:
            dense.zero_()
        _unpool[(triton.cdiv(g.numel(), 1024),)](
            g, code, dense, g.numel(), M, code.shape[1], code.shape[3], h, w, B, BLOCK=1024
        )
        return dense

    def _inward(self, dense: Tensor, x: Tensor) -> Tensor:
        """The gradient of the input."""
        K, H, C, W, B = x.shape
        M, _, R, S = self.convolution.weight.shape[1:]
        h, w = H - R + 1, W - S + 1
        columns = self.space("columns", (K * h, C * R * S, w * B), x)
        torch.bmm(self.convolution.rows(h).transpose(1, 2), dense.view(K * h, M, w * B), out=columns)
        gx = self.space("gx", (K, H, C, W, B), x)
        block = _block(B)
        _fold[(K * H * C * W, triton.cdiv(B, block))](columns, gx, H, W, B, h, w, C=C, R=R, S=S, BB=block)
        return gx


def _block(B: int) -> int:
    return min(128, triton.next_power_of_2(B))


def fuse(ops: list[Any]) -> list[Any]:
    """Replace every convolution that is followed by pooling (then bias, then ReLU) by one fused op."""
    fused: list[Any] = []
    while ops:
        if (
            len(ops) > 1
            and isinstance(ops[0], Convolution)
            and isinstance(ops[1], MaxPool)
            and ops[0].padding == (0, 0)
        ):
            one, rest = ConvolutionPool(ops[0]), ops[2:]
            if rest and isinstance(rest[0], ChannelBias):
                one.bias, rest = rest[0], rest[1:]
            if rest and isinstance(rest[0], Rectifier):
                one.relu, rest = True, rest[1:]
            fused.append(one)
            ops = rest
        else:
            fused.append(ops[0])
            ops = ops[1:]
    return fused
