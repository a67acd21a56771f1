"""A model, its images and a schedule as the C program reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from honestly.sim.train.flat import Layout
from honestly.sim.train.ops import ChannelBias, Convolution, Dense, Flatten, MaxPool, Rectifier
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.program import compile_program

MOST = 32  # layers, as in train.c
NAMES = ("kind", "relu", "C", "H", "W", "M", "R", "S", "top", "left", "weight", "bias")


class CLayer(ctypes.Structure):
    """`Layer` of layers.h."""

    _fields_ = [(name, ctypes.c_int64) for name in NAMES]


class CModel(ctypes.Structure):
    """`Model` of train.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("layers", "size", "classes")),
        *((name, ctypes.c_void_p) for name in ("layer", "images", "rows", "labels")),
        *((name, ctypes.c_int64) for name in ("C", "H", "W", "border")),
        ("values", ctypes.c_void_p),
    ]


class CSchedule(ctypes.Structure):
    """`Schedule` of train.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("steps", "batch")),
        *((name, ctypes.c_void_p) for name in ("samples", "counts", "fresh", "flips", "crops")),
        *((name, ctypes.c_float) for name in ("rate", "momentum", "decay")),
        ("nesterov", ctypes.c_int64),
    ]


def layers_of(module: nn.Module, size: tuple[int, int, int]) -> list[CLayer] | None:
    """The model as the layers that the compiled program knows, or None.

    It knows convolutions with 2 x 2 max-pooling, bias and ReLU, then dense layers with bias and ReLU. Each layer has to
    take what the one before it gives: the program does not check its addresses.
    """
    layout = Layout.of_parameters(module)
    row = torch.zeros((1, layout.size))
    program = compile_program(module, layout, row, row, fused=False)
    if program is None:
        return None
    ops: list[Any] = list(program.ops)
    layers: list[CLayer] = []
    C, H, W = size

    def next_is(kind: type) -> Any:
        return ops.pop(0) if ops and isinstance(ops[0], kind) else None

    def bias_and_relu(bias: Tensor | None) -> dict[str, int]:
        return {"bias": -1 if bias is None else int(bias.storage_offset()), "relu": int(next_is(Rectifier) is not None)}

    while convolution := next_is(Convolution):
        top, left = convolution.padding
        M, inputs, R, S = convolution.weight.shape[1:]
        H, W = H + 2 * top, W + 2 * left
        if next_is(MaxPool) is None or inputs != C or H - R < 1 or W - S < 1:
            return None
        bias = next_is(ChannelBias)
        layers.append(
            CLayer(
                kind=0, C=C, H=H, W=W, M=M, R=R, S=S, top=top, left=left, weight=convolution.weight.storage_offset(),
                **bias_and_relu(None if bias is None else bias.bias),
            )
        )  # fmt: skip
        C, H, W = M, (H - R + 1) // 2, (W - S + 1) // 2
    if next_is(Flatten) is None or not ops:
        return None
    values = C * H * W
    while dense := next_is(Dense):
        M, F = dense.weight.shape[1:]
        if values != F:
            return None
        values, weight = M, dense.weight.storage_offset()
        layers.append(CLayer(kind=1, C=F, H=1, W=1, M=M, R=1, S=1, weight=weight, **bias_and_relu(dense.bias)))
    return None if ops or len(layers) > MOST or layers[-1].kind == 0 else layers


@dataclass(frozen=True)
class ImageBuffer:
    """Images as the compiled program reads them; keeps alive what the structure points to."""

    model: CModel
    held: tuple[Any, ...]

    @classmethod
    def of(cls, layers: Sequence[CLayer], size: int, pixels: Pixels) -> ImageBuffer:
        """The model on these images."""
        classes = layers[-1].M
        images, rows, labels = (t.contiguous() for t in (pixels.images, pixels.rows, pixels.labels))
        for name, values, bound in (("label", labels, classes), ("image number", rows, len(images))):
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < bound:
                wrong = int(values.max()) if int(values.max()) >= bound else int(values.min())
                raise ValueError(f"a sample has the {name} {wrong}: it must be from 0 to {bound - 1}")
        table = torch.arange(256, dtype=torch.float32)[None] * pixels.scale[:, None] + pixels.shift[:, None]
        array = (CLayer * len(layers))(*layers)
        C, H, W = pixels.size
        model = CModel(
            layers=len(layers), size=size, classes=classes, layer=ctypes.addressof(array), images=images.data_ptr(),
            rows=rows.data_ptr(), labels=labels.data_ptr(), C=C, H=H, W=W, border=pixels.crop, values=table.data_ptr(),
        )  # fmt: skip
        return cls(model, (images, rows, labels, table, array))
