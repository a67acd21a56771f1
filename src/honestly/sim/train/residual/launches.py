# pyright: basic
"""How the kernels are cut into blocks and started: one function for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from honestly.sim.train import cuda
from honestly.sim.train.residual.layout import NormalisedConvolution
from honestly.sim.train.residual.tiles import (
    Phases,
    gradient_bytes,
    outs_of,
    splits_of,
    tiles_back,
    tiles_forward,
    tiles_of_weights,
)

POSITIONS = 8  # of a thread of the elementwise kernels, eight channels each
LANES = 32  # rows of threads that add up sums
NORMS = ("NORMS", f"LANES {LANES}", f"POSITIONS {POSITIONS}")


def source(defines: Sequence[str]) -> str:
    """The text of the kernels that these macros select; the first names the file."""
    folder = files("honestly.kernels")
    own = ("products", "convolve") if defines[0] == "CONVOLVE" else (defines[0].lower(),)
    names = ("lenet/shapes.cu", "lenet/tensorcores.cu", *(f"resnet/{name}.cu" for name in ("tiles", *own)))
    head = "".join(f"#define {line}\n" for line in defines[1:])
    return head + "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


@dataclass(frozen=True)
class StepClients:
    """Whose step it is: K clients with up to B images each, their weights (T, K, B) and the step's number."""

    K: int
    B: int
    weights: Tensor
    t: Tensor

    def launch(
        self,
        name: str,
        defines: Sequence[str],
        grid: tuple[int, int],
        threads: int,
        args: list[Any],
        *,
        shared: int = 0,
    ) -> None:
        """Start blocks for every client; the last arguments are always the same."""
        file, *rest = defines
        cuda.launch(
            name, [file, f"IMAGES_A_CLIENT {self.B}", *rest], (*grid, self.K), threads, args, shared=shared, text=source
        )  # fmt: skip


@dataclass(frozen=True)
class Sums:
    """The sums of tiles: (K, tiles, classes, many, channels)."""

    values: Tensor
    an_image: int
    several: int

    @property
    def many(self) -> int:
        """Sums of a channel."""
        return self.values.shape[3]


@dataclass(frozen=True)
class NormalisedOutput:
    """The output y of a convolution and its BatchNorm (K, 4, channels): scale, shift, mean, 1 / deviation."""

    convolution: NormalisedConvolution
    y: Tensor
    norm: Tensor


Input = Tensor | NormalisedOutput  #: activations, or an output that becomes one by its BatchNorm and ReLU


def _read(x: Input, none: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """What a kernel reads instead of the activations x: numbers, their BatchNorm, and the macro that says so."""
    return (x.y, x.norm, ["NORMALISED"]) if isinstance(x, NormalisedOutput) else (x, none, [])


def convolve(at: StepClients, c: NormalisedConvolution, x: Input, filters: Tensor, y: Tensor, sums: Tensor) -> Sums:
    """`y` = the convolution of x, and the sums of y and y^2 by tile; ``filters`` are (K, size) in bfloat16."""
    none = at.weights
    source, norm, normalised = _read(x, none)
    tiles = tiles_forward(c)
    outs, threads = outs_of(c.outside), 32 * tiles.warps
    number, phases = tiles.number(at.B), Phases.of(c.extent**2, c.inside, stride=c.stride)
    partial = sums[: at.K * number * 2 * c.outside].view(at.K, number, 1, 2, c.outside)
    defines = [
        "CONVOLVE", *tiles.defines, f"THREADS {threads}", f"IN {c.inside}", f"OUT {c.outside}", f"OUTS {outs}",
        f"EXTENT_W {c.extent}", f"BLOCKS_A_PROCESSOR {tiles.blocks(outs)}", "CLASSES 1", *phases.defines, *normalised,
    ]  # fmt: skip
    own = filters[:, c.filters :]
    args = [source, own, y, partial, at.weights, at.t, *[none] * 5, norm, *[none] * 2, filters.stride(0), at.K]
    grid = (number * (c.outside // outs), 1)
    at.launch("convolve", defines, grid, threads, args, shared=phases.shared_bytes(tiles, outs, 2))
    return Sums(partial, tiles.an_image, tiles.several)


@dataclass(frozen=True)
class Before:
    """What lies before a convolution: ReLU of a BatchNorm, or of a block's sum, whose signs are bits of bytes."""

    main: NormalisedOutput
    signs: Tensor | None = None
    shortcut: NormalisedOutput | None = None


def convolve_back(
    at: StepClients,
    c: NormalisedConvolution,
    gradient: Tensor,
    filters: Tensor,
    before: Before,
    out: Tensor,
    sums: Tensor,
    *,
    add: Tensor | None = None,
    shortcut: tuple[NormalisedConvolution, Tensor] | None = None,
) -> Sums:
    """`out` = the gradient of what ReLU got before the convolution, and its sums by tile; ``add`` comes along an
    identity, ``shortcut`` through a 1 x 1 convolution."""
    halved = c.stride == 2
    tiles = tiles_back(c)
    outs, threads, classes = outs_of(c.inside), 32 * tiles.warps, 4 if halved else 1
    many = 3 if before.shortcut is not None else 2
    number, phases = tiles.number(at.B), Phases.of(9, c.outside, halved=halved)
    partial = sums[: at.K * number * classes * many * c.inside].view(at.K, number, classes, many, c.inside)
    defines = [
        "CONVOLVE", *tiles.defines, f"THREADS {threads}", f"IN {c.outside}", f"OUT {c.inside}", f"OUTS {outs}",
        "EXTENT_W 3", f"BLOCKS_A_PROCESSOR {tiles.blocks(outs)}", f"CLASSES {classes}", *phases.defines, "BACKWARD",
        *["HALVED"] * halved, *["ADD"] * (add is not None), *["SIGNS"] * (before.signs is not None),
        *["SHORTCUT"] * (shortcut is not None), *["SHORTCUT_SUMS"] * (many == 3),
    ]  # fmt: skip
    none = at.weights
    cut_gradient = none if shortcut is None else shortcut[1]
    cut_filters = none if shortcut is None else filters[:, shortcut[0].filters :]
    cut = before.shortcut
    args = [
        gradient, filters[:, c.filters :], out, partial, at.weights, at.t, cut_gradient, cut_filters,
        none if add is None else add, none if before.signs is None else before.signs, before.main.y, before.main.norm,
        none if cut is None else cut.y, none if cut is None else cut.norm, filters.stride(0), at.K,
    ]  # fmt: skip
    grid = (number * (c.inside // outs) * classes, 1)
    at.launch("convolve", defines, grid, threads, args, shared=phases.shared_bytes(tiles, outs, many))
    return Sums(partial, tiles.an_image, tiles.several)


def weight_gradient(
    at: StepClients, c: NormalisedConvolution, x: Input, gradient: Tensor, grad: Tensor, parts: Tensor
) -> None:
    """The gradient of the filters, into its place in ``grad`` (K, size)."""
    source, norm, normalised = _read(x, at.weights)
    tiles, outs, splits = tiles_of_weights(c), outs_of(c.outside), splits_of(at.B, c)
    products = c.outside // outs * (c.inside // 32)
    size, own = c.outside * c.extent**2 * c.inside, grad[:, c.filters :]
    to, stride = (own, grad.stride(0)) if splits == 1 else (parts, size)
    defines = [
        "WEIGHTS", *tiles.defines, f"THREADS {4 * outs}", f"IN {c.inside}", f"OUT {c.outside}", f"OUTS {outs}",
        f"BLOCKS_A_PROCESSOR {128 // outs}", *normalised,
    ]  # fmt: skip
    args = [source, norm, gradient, to, at.weights, at.t, stride, at.K]
    at.launch("weight_gradient", defines, (splits, products), 4 * outs, args, shared=gradient_bytes(c))
    if splits > 1:
        collect = [parts, own, splits, size, grad.stride(0)]
        at.launch("add_parts", ["ENDS", "STEP", *NO_STEP], (-(-size // 256), 1), 256, collect)


NO_STEP = ("LEARNING_RATE 0.0f", "MOMENTUM 0.0f", "WEIGHT_DECAY 0.0f")


def make_norm(
    at: StepClients, c: NormalisedConvolution, sums: Sums, theta: Tensor, norm: Tensor, statistics: Tensor
) -> None:
    """BatchNorm of a convolution's output from its sums; its running statistics, if it has any, move on."""
    tiles = sums.values.shape[1]
    running = [] if c.running is None else [f"RUNNING {c.momentum!r}f"]
    args = [
        sums.values, theta[:, c.norm :], norm, statistics[:, c.running or 0 :], at.weights, at.t, theta.stride(0),
        statistics.stride(0), c.outside, c.side**2, tiles, sums.an_image, sums.several, at.K,
    ]  # fmt: skip
    at.launch("make_norm", [*NORMS, *running], (c.outside // 32, 1), 32 * LANES, args)


def make_norm_gradient(
    at: StepClients, of: NormalisedOutput, sums: Sums, which: int, grad: Tensor, back: Tensor
) -> None:
    """The gradients of gamma and beta into their places in ``grad``, and the coefficients of y's gradient."""
    c = of.convolution
    _, tiles, classes, many, _ = sums.values.shape
    args = [
        sums.values, of.norm, back, grad[:, c.norm :], at.weights, at.t, grad.stride(0), c.outside, c.side**2, tiles,
        classes, sums.an_image, sums.several, many, which, at.K,
    ]  # fmt: skip
    at.launch("make_norm_gradient", NORMS, (c.outside // 32, 1), 32 * LANES, args)


def _blocks(at: StepClients, c: NormalisedConvolution) -> tuple[int, int]:
    return (-(-at.B * c.side**2 * c.outside // (8 * 256 * POSITIONS)), 1)


def activate(
    at: StepClients,
    of: NormalisedOutput,
    z: Tensor,
    *,
    other: NormalisedOutput | Tensor | None = None,
    signs: Tensor | None = None,
) -> None:
    """`z` = ReLU of the normalised y, plus a shortcut: a tensor as it is, or another one normalised; then also the
    ``signs`` of z, one bit each."""
    c = of.convolution
    kind = [] if other is None else ["IDENTITY"] if isinstance(other, Tensor) else ["PROJECTED"]
    y, norm = (
        (other.y, other.norm) if isinstance(other, NormalisedOutput) else (of.y if other is None else other, of.norm)
    )
    args = [of.y, of.norm, y, norm, z, z if signs is None else signs, at.weights, at.t, c.outside, c.side**2, at.K]
    at.launch("activate", [*NORMS, *kind], _blocks(at, c), 256, args)


def norm_gradient(at: StepClients, of: NormalisedOutput, g: Tensor, back: Tensor, out: Tensor) -> None:
    """`out` = the gradient of y."""
    c = of.convolution
    args = [g, of.y, of.norm, back, out, at.weights, at.t, c.outside, c.side**2, at.K]
    at.launch("norm_gradient", NORMS, _blocks(at, c), 256, args)


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block of the device may ask for."""
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10))
