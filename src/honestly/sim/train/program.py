"""Small models as one batched program: an `nn.Sequential` of the layers in `ops`, for K clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from honestly.sim.train.flat import Layout
from honestly.sim.train.ops import ChannelBias, Convolution, Dense, Flatten, MaxPool, Op, Rectifier


@dataclass
class BatchedModel:
    """A model for K clients whose parameters are the rows of ``theta`` and whose gradients are the rows of ``grad``."""

    theta: Tensor  # (K, d)
    grad: Tensor  # (K, d)
    ops: Sequence[Op] = field(default_factory=tuple)
    native: bool = False  # its ops are kernels of our own

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
    model: nn.Module,
    layout: Layout,
    theta: Tensor,
    grad: Tensor,
    *,
    size: tuple[int, int, int] | None = None,
    fused: bool | None = None,
) -> BatchedModel | None:
    """The model as a batched program over the rows of ``theta``, or None if it has a layer that is not known here.

    ``fused`` makes one op of convolution, pooling, bias and ReLU, by kernels of our own for images of ``size``
    (`honestly.sim.train.native`). By default it does on a GPU, where that is faster.
    """
    layers = _layers_of(model)
    if layers is None:
        return None
    ops: list[Any] = []
    for name, layer in layers:
        op = _op(name, layer, layout, theta, grad)
        if op is None:
            return None
        ops += op
    ops = _pool_early(ops)
    if size is not None and fused is not False and (theta.is_cuda or fused):
        from honestly.sim.train import cuda, native

        own = native.fuse(ops, size) if cuda.works_on(theta.device) else None
        if own is not None:
            return BatchedModel(theta, grad, tuple(own), native=True)
    return BatchedModel(theta, grad, tuple(ops))


def _layers_of(model: nn.Module) -> list[tuple[str, nn.Module]] | None:
    if type(model) is not nn.Sequential:
        return None
    everything = model.named_modules(remove_duplicate=False)  # one nn.ReLU() may stand between several layers
    return [(name, layer) for name, layer in everything if name and "." not in name]


def _op(name: str, layer: nn.Module, layout: Layout, theta: Tensor, grad: Tensor) -> list[Any] | None:
    mine = [parameter for parameter, _ in layer.named_parameters()]
    if not {*mine} <= {"weight", "bias"} or any(f"{name}.{parameter}" not in layout.names for parameter in mine):
        return None  # the row has no frozen parameters, and those of a layer that is used twice stand there once

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
