"""Convolutions on (emulated) tensor cores against float64: accurate to 16 bits, for all shapes that they take."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from honestly.sim.train import cuda, tensorcores
from honestly.sim.train.native import ConvolutionPool
from honestly.sim.train.ops import ChannelBias, Convolution
from honestly.sim.train.tensorcores import PooledTiles
from tests.sim.emulation import emulated, libraries  # noqa: F401 - fixtures

pytestmark = pytest.mark.usefixtures("emulated")

LENET = (16, 6, 5, 5, 14, 14)  # M, C, R, S, H, W of its second convolution
SHAPES = {
    "lenet": (LENET, 2, 12),  # shape, K, B: a group of eight images, and half of one
    "more pairs than a block takes, odd channels": ((11, 9, 4, 5, 7, 8), 1, 20),
    "strips": ((9, 5, 3, 3, 6, 14), 1, 4),  # six pooled columns
    "filters of two": ((16, 8, 2, 2, 5, 7), 3, 8),  # 16 pairs exactly: the bias takes a tile of its own
    "tall filters": ((12, 3, 5, 2, 6, 3), 1, 16),
}


@dataclass
class Case:
    """Random inputs of a convolution; ``plain`` means neither bias nor ReLU."""

    shape: tuple[int, ...]
    K: int
    B: int
    flat: bool = False
    plain: bool = False

    def __post_init__(self) -> None:
        M, C, R, S, H, W = self.shape
        make = torch.Generator().manual_seed(0)
        self.x = torch.rand((self.K, H, C, W, self.B), generator=make) - 0.3
        self.x[:, : H // 2, :, : W // 2] = 0.25  # ties in pooling
        self.weight = torch.randn((self.K, M, C, R, S), generator=make) / (C * R * S) ** 0.5
        self.bias = torch.randn((self.K, M), generator=make) / 10
        self.g = torch.randn((self.K, (H - R + 1) // 2, M, (W - S + 1) // 2, self.B), generator=make)

    def run(self) -> dict[str, Tensor]:
        """What the kernels make of them."""
        bias = ChannelBias(self.bias, torch.full_like(self.bias, torch.nan))
        op = ConvolutionPool(
            Convolution(self.weight, torch.full_like(self.weight, torch.nan)),
            None if self.plain else bias, relu=not self.plain, flat=self.flat,
        )  # fmt: skip
        assert op._tiles(self.x) is not None
        K, h, M, w, B = self.g.shape
        y = op.forward(self.x).clone()
        assert op.codes is not None
        code = op.codes[: y.numel()].clone()
        g = self.g.permute(0, 2, 1, 3, 4).reshape(K, -1, B) if self.flat else self.g
        gx = op.backward(g.clone(), inward=True)
        assert gx is not None
        if self.flat:
            y, code = (t.view(K, M, h, w, B).permute(0, 2, 1, 3, 4) for t in (y, code))
        found = {"y": y, "code": code.view(y.shape), "gx": gx, "grad": op.convolution.grad}
        return found if self.plain else {**found, "bias_grad": bias.grad}

    def exact(self, code: Tensor) -> dict[str, Tensor]:
        """The same in float64, with the corners that the kernel chose: of nearly equal ones it may take either."""
        x, weight, bias = (t.double().requires_grad_() for t in (self.x, self.weight, self.bias))
        K, h, M, w, B = self.g.shape
        corners: list[Tensor] = []
        for k in range(K):
            z = nn.functional.conv2d(x[k].permute(3, 1, 0, 2), weight[k])[:, :, : 2 * h, : 2 * w]
            z = z.reshape(B, M, h, 2, w, 2).permute(3, 5, 2, 1, 4, 0)
            corners.append(z.reshape(4, h, M, w, B))
        four = torch.stack(corners, 1)
        shift = 0 if self.plain else bias[:, None, :, None, None]
        chosen = four.gather(0, code.long().clamp(max=3)[None])[0] + shift
        (chosen * (code < 4)).backward(self.g.double())
        y = four.amax(0) + shift
        found = {"y": y if self.plain else y.relu(), "gx": x.grad, "grad": weight.grad, "bias_grad": bias.grad}
        return {name: value.detach() for name, value in found.items() if value is not None}


def error(got: Tensor, exact: Tensor) -> float:
    """The largest error in units of the largest value."""
    return float((got.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("name", SHAPES)
def test_accurate_to_sixteen_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, K, B = SHAPES[name]
    c = Case(shape, K, B, flat=name == "lenet", plain=name == "strips")
    monkeypatch.setattr(tensorcores, "BLOCKS", 1 if name == "strips" else 7)
    got = c.run()
    exact = c.exact(got.pop("code"))
    errors = {n: error(got[n], exact[n]) for n in got}
    assert max(errors.values()) < 2.0**-16, errors


@pytest.mark.parametrize("part", [0, 1], ids=["high x low", "low x high"])
def test_every_part_of_a_product_is_needed(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of the small products the accuracy is bfloat16's: the test above would notice."""
    c = Case(LENET, 1, 8)
    whole: Callable[[Any], str] = cuda.source
    monkeypatch.setattr(
        cuda, "source", lambda defines: re.sub(rf"if \(part == {part}\) multiply[^;]*;", ";", whole(defines))
    )
    got = c.run()
    exact = c.exact(got["code"])
    for name in ("y", "grad", "gx"):
        assert 1e-4 < error(got[name], exact[name]) < 1e-2


def test_the_same_bits_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorcores, "BLOCKS", 5)
    c = Case(LENET, 1, 12, flat=True)
    first, second = c.run(), c.run()
    assert all(np.array_equal(first[n].numpy(), second[n].numpy()) for n in first)


def test_equal_windows_stay_equal() -> None:
    """Of equal values the first corner wins, as in PyTorch, wherever in the image they are."""
    c = Case(LENET, 1, 12, flat=True)
    c.x.fill_(0.3)
    assert set(c.run()["code"].unique().tolist()) == {0, 4}  # 4: ReLU gave 0


def test_what_does_not_fit_goes_to_the_plain_cores() -> None:
    names = ("M", "C", "R", "S", "H", "W")
    lenet = PooledTiles(K=2, B=128, **dict(zip(names, LENET, strict=True)))
    assert lenet.fit
    for change in ({"B": 126}, {"M": 6}, {"M": 17}, {"C": 1, "R": 3}, {"W": 40}, {"C": 60}):
        assert not PooledTiles(**{**vars(lenet), **change}).fit, change


def test_splits_cover_every_unit_once() -> None:
    """However many blocks are asked for, there is never more than a warp for a unit."""
    lenet = PooledTiles(20, 128, 6, 14, 14, 16, 5, 5)
    found = [lenet.weight_grid(n) for n in (1, 100, 1500, 10**6)]
    assert [blocks for blocks, _ in found] == [20, 100, 800, 800]
    assert all(a <= b for (_, a), (_, b) in pairwise(found))


def test_float32_throughout_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the emulation's own answer
    device = torch.device("cuda:7")
    tensorcores._capable.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert tensorcores.available(device)
    monkeypatch.setenv("HONESTLY_TENSOR_CORES", "0")
    assert not tensorcores.available(device)
    assert not tensorcores.available(torch.device("cpu"))
    tensorcores._capable.cache_clear()
