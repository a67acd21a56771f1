# pyright: basic
"""Local training of all clients by our own CUDA kernels (`kernels.cu`): a step is about 25 launches in one graph.

What the plain `ops` do in many passes over memory is one kernel here: convolution, pooling, bias and ReLU with every
window read once into registers; their gradients; the loss; the optimiser. Convolutions that fit are products on the
tensor cores (`tensorcores.cu`), in three parts of bfloat16, which keep 16 bits. The products of the dense layers stay
with cuBLAS. The numbers are the plain path's to float tolerance, and the tests run the very same kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from honestly.sim.train import tensorcores
from honestly.sim.train.cuda import launch
from honestly.sim.train.ops import ChannelBias, Convolution, Dense, Flatten, MaxPool, Op, Rectifier, Workspace
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.sgd import SGD
from honestly.sim.train.tensorcores import SHARED, WARPS, PooledTiles

REGISTERS = 96  # numbers of the input's gradient that a thread holds
BLOCKS = 1500  # that many blocks keep every processor of a large GPU busy


@dataclass
class ConvolutionPool:
    """A convolution without padding, 2 x 2 pooling, bias and ReLU as one op; ``flat`` if a dense layer follows."""

    convolution: Convolution
    bias: ChannelBias | None = None
    relu: bool = False
    flat: bool = False
    space: Workspace = field(default_factory=Workspace)
    codes: Tensor | None = None
    saved: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def takes(convolution: Convolution) -> bool:
        """Whether the kernels can do it: filters that fit a warp, and a gradient that fits registers."""
        M, C, R, S = convolution.weight.shape[1:]
        return convolution.padding == (0, 0) and R * S < 32 and R > 1 and S > 1 and 4 * C * R * S * min(M, 16) <= SHARED

    def _defines(self, shape: Sequence[int]) -> list[str]:
        _, H, C, W, B = shape
        M, _, R, S = self.convolution.weight.shape[1:]
        pair = 2 if M <= 8 and (W - S + 1) // 2 % 2 == 0 else 1
        return [
            "CONVOLUTION", f"C {C}", f"M {M}", f"R {R}", f"S {S}", f"H {H}", f"W {W}", f"PAIR {pair}",
            f"FM {min(M, 16)}", f"GM {self._tile()}", f"THREADS {threads(B)}",
            f"BATCH {B if B <= 256 else 'batch'}",  # a constant for training, one kernel for all sizes of test sets
            *["BIAS"] * (self.bias is not None), *["RELU"] * self.relu, *["FLAT"] * self.flat,
            *["INWARD"] * self.inward(shape),
        ]  # fmt: skip

    def _tile(self) -> int:
        """Output channels whose gradient one thread adds up."""
        M = self.convolution.weight.shape[1]
        return 3 if M % 4 and M % 3 == 0 else min(M, 4)

    def inward(self, shape: Sequence[int]) -> bool:
        """Whether the kernel for the input's gradient takes this shape: no row or column is left over by pooling."""
        _, H, _, W, _ = shape
        R, S = self.convolution.weight.shape[3:]
        return (R + 1) * W <= REGISTERS and (H - R + 1) % 2 == 0 and (W - S + 1) % 2 == 0

    def _tiles(self, x: Tensor) -> PooledTiles | None:
        """The work as the tensor cores would do it; None if they cannot."""
        K, H, C, W, B = x.shape
        M, _, R, S = self.convolution.weight.shape[1:]
        tiles = PooledTiles(K, B, C, H, W, M, R, S)
        return tiles if tiles.fit and tensorcores.available(x.device) else None

    def forward(self, x: Tensor) -> Tensor:
        """(K, h, M, w, B), pooled, or (K, M h w, B) for a dense layer."""
        x = x.contiguous()
        K, H, _, W, B = x.shape
        weight = self.convolution.weight
        M, _, R, S = weight.shape[1:]
        h, v = (H - R + 1) // 2, (W - S + 1) // 2
        y = self.space("y", (K, M * h * v, B) if self.flat else (K, h, M, v, B), x)
        if self.codes is None or self.codes.numel() < y.numel():
            self.codes = torch.empty(y.numel(), dtype=torch.uint8, device=x.device)
        bias = weight if self.bias is None else self.bias.bias
        defines = self._defines(x.shape)
        args = [x, weight, bias, y, self.codes, weight.stride(0), bias.stride(0), B]
        if tiles := self._tiles(x):
            special = [*defines, "TENSOR_FORWARD", *tiles.defines]
            launch("tensor_forward", special, tiles.forward_grid, 32 * tiles.rows, args)
        else:
            pair = 2 if "PAIR 2" in defines else 1
            grid = (K * h * (v // pair), -(-B // threads(B)), -(-M // min(M, 16)))
            launch("forward", defines, grid, threads(B), args)
        self.saved = (x, self.codes)
        return y

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input; those of weights and bias are written to their places."""
        assert self.saved is not None
        (x, code), self.saved = self.saved, None
        g = g.contiguous()
        K, H, C, _W, B = x.shape
        weight, grad = self.convolution.weight, self.convolution.grad
        M, _, R, _ = weight.shape[1:]
        defines, tiles = self._defines(x.shape), self._tiles(x)
        if tiles:
            blocks, splits = tiles.weight_grid(tensorcores.BLOCKS)
        else:
            blocks = K * C * -(-M // self._tile())
            splits = min((H - R + 1) // 2, -(-BLOCKS // blocks))
            blocks *= splits
        parts = self.space("parts", (K, splits, M, C, 32), x)
        args = [x, g, code, parts, splits, B]
        if tiles:
            special = [*defines, "TENSOR_WEIGHT_GRADIENT", *tiles.defines]
            launch("tensor_weight_gradient", special, (blocks,), 32 * WARPS, args)
        else:
            launch("weight_gradient", defines, (blocks,), threads(B), args)
        bias_grad = grad if self.bias is None else self.bias.grad
        launch(
            "collect", defines, (-(-K * M * C * 32 // 256),), 256,
            [parts, grad, bias_grad, splits, K, grad.stride(0), bias_grad.stride(0)],
        )  # fmt: skip
        if not inward:
            return None
        gx = self.space("gx", x.shape, x)
        args = [g, code, weight, gx, weight.stride(0), B]
        if tiles:
            special = [*defines, "TENSOR_INPUT_GRADIENT", *tiles.defines]
            launch("tensor_input_gradient", special, tiles.input_grid, 32 * WARPS, args)
        else:
            launch("input_gradient", defines, (K * C, -(-B // threads(B))), threads(B), args)
        return gx


def threads(B: int) -> int:
    """Threads of a block: whole warps, one lane per image."""
    return min(128, -(-B // 32) * 32)


@dataclass
class DenseRelu:
    """`y = W x + b`, then ReLU: the products by cuBLAS, the rest in one kernel each way."""

    dense: Dense
    relu: bool = False
    saved: tuple[Tensor, Tensor] | None = None

    def _defines(self) -> list[str]:
        return ["DENSE", *["BIAS"] * (self.dense.bias is not None), *["RELU"] * self.relu]

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        y = torch.bmm(self.dense.weight, x)
        K, M, B = y.shape
        bias = y if self.dense.bias is None else self.dense.bias
        launch("bias_relu", self._defines(), (-(-M * B // 256), K), 256, [y, bias, bias.stride(0), M, B])
        self.saved = (x, y)
        return y

    def backward(self, g: Tensor, *, inward: bool) -> Tensor | None:
        """The gradient of the input."""
        assert self.saved is not None
        (x, y), self.saved = self.saved, None
        K, M, B = g.shape
        bias = g if self.dense.bias_grad is None else self.dense.bias_grad
        launch("bias_relu_back", self._defines(), (-(-M // 8), K), 256, [g, y, bias, bias.stride(0), M, B])
        torch.bmm(g, x.transpose(1, 2), out=self.dense.grad)
        return torch.bmm(self.dense.weight.transpose(1, 2), g) if inward else None


def fuse(ops: Sequence[Op], size: tuple[int, int, int]) -> list[Op] | None:
    """The same model in ops of this file, for images (C, H, W); None if one of its layers has no kernel."""
    fused: list[Op] = []
    rest = list(ops)
    _, H, W = size

    def take(kind: type) -> Any:
        return rest.pop(0) if rest and isinstance(rest[0], kind) else None

    while rest:
        op = rest.pop(0)
        if isinstance(op, Flatten) and not fused:  # an MLP: images as they come
            fused.append(op)
        elif isinstance(op, Dense):
            fused.append(DenseRelu(op, relu=take(Rectifier) is not None))
        elif isinstance(op, Convolution) and take(MaxPool) and ConvolutionPool.takes(op):
            one = ConvolutionPool(op, take(ChannelBias), take(Rectifier) is not None, take(Flatten) is not None)
            _, C, R, S = op.weight.shape[1:]
            if fused and not one.inward((1, H, C, W, 1)):
                return None
            fused.append(one)
            H, W = (H - R + 1) // 2, (W - S + 1) // 2
        else:
            return None
    return fused


class Step:
    """One mini-batch of every client, read from the schedules by a step counter on the device."""

    def __init__(
        self,
        ops: Sequence[Op],
        pixels: Pixels,
        sgd: SGD,
        *,
        theta: Tensor,
        grad: Tensor,
        velocity: Tensor,
        loss: Tensor,
    ) -> None:
        self.ops, self.pixels, self.sgd = ops, pixels, sgd
        self.theta, self.grad, self.velocity, self.loss = theta, grad, velocity, loss
        self.space = Workspace()

    def __call__(self, schedule: Mapping[str, Tensor], t: Tensor, x: Tensor | None = None) -> None:
        """Step number ``t`` of the schedules (T, K, ...); ``x`` if the images have been gathered already."""
        samples, weights, rate, keep = (schedule[n] for n in ("samples", "weights", "rate", "keep"))
        _, K, B = samples.shape
        C, H, W = self.pixels.size
        classes = 2

        def defines() -> list[str]:
            s = self.sgd
            return [
                "STEP", f"BATCH {B}", f"PIXELS {C * H * W}", f"HEIGHT {H}", f"WIDTH {W}", f"CHANNELS {C}",
                f"CLASSES {classes}", f"LEARNING_RATE {s.lr!r}f", f"MOMENTUM {float(s.momentum)!r}f",
                f"WEIGHT_DECAY {float(s.weight_decay)!r}f", *["HEAVY_BALL"] * bool(s.momentum),
                *["NESTEROV"] * s.nesterov,
            ]  # fmt: skip

        if x is None:
            x = self.space("x", (K, H, C, W, B), self.theta)
            launch(
                "gather", defines(), (-(-C * H * W // 128), -(-B // 32), K), 256,
                [self.pixels.images, self.pixels.rows, samples, t, self.pixels.scale, self.pixels.shift, x, K],
            )  # fmt: skip
        for op in self.ops:
            x = op.forward(x)
        classes = x.shape[1]
        g: Tensor | None = self.space("g", x.shape, x)
        launch(
            "cross_entropy", defines(), (K,), 128,
            [x, self.pixels.labels, samples, weights, rate, t, g, self.loss, K],
        )  # fmt: skip
        for number in range(len(self.ops) - 1, -1, -1):
            assert g is not None
            g = self.ops[number].backward(g, inward=number > 0)
        size = self.theta.shape[1]
        launch(
            "sgd", defines(), (-(-size // 256), K), 256, [self.theta, self.grad, self.velocity, rate, keep, t, K, size]
        )
        launch("next_step", defines(), (1,), 1, [t])
