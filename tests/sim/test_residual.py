"""Residual networks by our own kernels: the very same CUDA code, run on the CPU by an emulation, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, cross_entropy
from torch.nn.grad import conv2d_input, conv2d_weight

from honestly.sim.models.resnet import ResidualBlock, resnet18, resnet18_half
from honestly.sim.train.flat import Layout
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.replay import Graph
from honestly.sim.train.residual import launches, tiles, trainer
from honestly.sim.train.residual.launches import Before, NormalisedOutput, StepClients
from honestly.sim.train.residual.layout import NormalisedConvolution, ResidualNetwork
from honestly.sim.train.residual.step import Clones
from honestly.sim.train.schedule import Stack, plan
from honestly.sim.train.sequential import SequentialTrainer
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model
from tests.sim.emulation import emulated, libraries  # noqa: F401 - fixtures

pytestmark = pytest.mark.usefixtures("emulated")
HALF = torch.bfloat16

K, B = 2, 6
COUNTS = (5, 3)  # images of the two clients: less than a mini-batch, and not whole tiles
SHAPES = {
    "whole rows": NormalisedConvolution(32, 32, 3, 1, 32, 0, 0),
    "two slices": NormalisedConvolution(64, 64, 3, 1, 16, 0, 0),
    "two tiles of channels": NormalisedConvolution(32, 128, 3, 1, 8, 0, 0),
    "many images": NormalisedConvolution(64, 32, 3, 1, 4, 0, 0),
    "stride": NormalisedConvolution(32, 64, 3, 2, 16, 0, 0),
    "stride, many images": NormalisedConvolution(64, 128, 3, 2, 4, 0, 0),
}
ONE_TAP = {
    "patches": NormalisedConvolution(32, 32, 1, 1, 32, 0, 0),
    "short cut": NormalisedConvolution(32, 64, 1, 2, 8, 0, 0),
}


class Case:
    """Small whole numbers, which bfloat16 and every order of summation keep; NaN wherever nothing may be read."""

    def __init__(self, c: NormalisedConvolution) -> None:
        self.c, self.make = c, np.random.default_rng(c.inside + c.side)
        self.x = self.whole((K, B, c.side * c.stride, c.side * c.stride, c.inside))
        self.gradient = self.whole((K, B, c.side, c.side, c.outside))
        self.filters = self.whole((K, c.outside * c.extent**2 * c.inside), 1)
        weights = torch.tensor([[1 / n if b < n else 0.0 for b in range(B)] for n in COUNTS])
        self.at = StepClients(K, B, torch.stack((torch.zeros_like(weights), weights)), torch.ones(1, dtype=torch.int64))
        self.sums = torch.full((tiles.sums_size(K, B, c),), torch.nan)

    def whole(self, shape: tuple[int, ...], most: int = 2) -> Tensor:
        values = torch.from_numpy(self.make.integers(-most, most + 1, size=shape)).to(HALF)
        if len(shape) == 5:
            for k, n in enumerate(COUNTS):
                values[k, n:] = torch.nan
        return values

    def input(self, normalised: bool) -> tuple[launches.Input, Tensor]:
        """What a kernel reads, and the activations that it means by that."""
        if not normalised:
            return self.x, self.x
        before = NormalisedConvolution(0, self.c.inside, 3, 1, self.c.side * self.c.stride, 0, 0)
        norm = self.whole((K, 4, self.c.inside)).float()
        scale, shift = (norm[:, n, None, None, None, :] for n in (0, 1))
        return NormalisedOutput(before, self.x, norm), (scale * self.x.float() + shift).relu().to(HALF)

    def weight(self, k: int) -> Tensor:
        """The filters as PyTorch wants them."""
        c = self.c
        return self.filters[k].float().view(c.outside, c.extent, c.extent, c.inside).permute(0, 3, 1, 2)

    @property
    def padding(self) -> int:
        return self.c.extent // 2

    def totals(self, sums: launches.Sums, k: int) -> Tensor:
        """The sums of a client's tiles that have an image: (many, channels)."""
        n = COUNTS[k]
        tiles = -(-n // sums.several) * sums.an_image
        return sums.values[k, :tiles].sum((0, 1))


def images(tensor: Tensor, k: int) -> Tensor:
    """A client's images as PyTorch wants them."""
    return tensor[k, : COUNTS[k]].float().permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", [*SHAPES, *ONE_TAP])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_convolution_is_exact_and_sums_up_its_channels(name: str, normalised: bool) -> None:
    c = {**SHAPES, **ONE_TAP}[name]
    case = Case(c)
    y = torch.full((K, B, c.side, c.side, c.outside), 77.0, dtype=HALF)
    x, numbers = case.input(normalised)
    sums = launches.convolve(case.at, c, x, case.filters, y, case.sums)
    for k, n in enumerate(COUNTS):
        expected = conv2d(images(numbers, k), case.weight(k), stride=c.stride, padding=case.padding).to(HALF).float()
        assert torch.equal(images(y, k), expected)
        assert (y[k, n:] == 77.0).all()
        totals = case.totals(sums, k)
        assert torch.equal(totals[0], expected.sum((0, 2, 3)))
        torch.testing.assert_close(totals[1], (expected**2).sum((0, 2, 3)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", ["inner", "outer", "after a short cut"])
def test_the_gradient_of_the_input_is_exact_and_cut_off(name: str, kind: str) -> None:
    c = SHAPES[name]
    case = Case(c)
    before = NormalisedConvolution(0, c.inside, 3, 1, c.side * c.stride, 0, 0)
    shape = tuple(case.x.shape)
    norms = [case.whole((K, 4, c.inside)).float() for _ in range(2)]
    y, cut_y, z, identity = (case.whole(shape) for _ in range(4))
    signs = torch.from_numpy(np.packbits((z > 0).numpy(), -1, bitorder="little"))
    inner = kind == "inner"
    main = NormalisedOutput(before, y, norms[0])
    cut = NormalisedOutput(before, cut_y, norms[1]) if kind == "after a short cut" else None
    out = torch.full(shape, 77.0, dtype=HALF)
    branch = (
        NormalisedConvolution(c.inside, c.outside, 1, 2, c.side, case.filters.shape[1], 0) if c.stride == 2 else None
    )
    cut_gradient, cut_filters = case.whole((K, B, c.side, c.side, c.outside)), case.whole((K, c.outside * c.inside), 1)
    filters = torch.cat((case.filters, cut_filters), 1)
    straight = not inner and branch is None
    sums = launches.convolve_back(
        case.at, c, case.gradient, filters, Before(main, None if inner else signs, cut), out, case.sums,
        add=identity if straight else None,
        shortcut=(branch, cut_gradient) if branch is not None and not inner else None,
    )  # fmt: skip
    for k, n in enumerate(COUNTS):
        size = images(case.x, k).shape
        whole = conv2d_input(size, case.weight(k), images(case.gradient, k), stride=c.stride, padding=1)
        if branch is not None and not inner:
            weight = cut_filters[k].float().view(c.outside, c.inside, 1, 1)
            whole += conv2d_input(size, weight, images(cut_gradient, k), stride=2)
        expected = whole.to(HALF).float()
        if straight:
            expected += images(identity, k)
        scale, shift, mean, _ = (row[None, :, None, None] for row in norms[0][k])
        passes = scale * images(y, k) + shift > 0 if inner else images(z, k) > 0
        expected = torch.where(passes, expected.to(HALF).float(), 0.0)
        assert torch.equal(images(out, k), expected)
        assert (out[k, n:] == 77.0).all()
        totals = case.totals(sums, k)
        assert totals.shape[0] == (3 if cut is not None else 2)
        exact = {"rtol": 1e-6, "atol": 0.0}
        torch.testing.assert_close(totals[0], expected.sum((0, 2, 3)), **exact)
        torch.testing.assert_close(totals[1], (expected * (images(y, k) - mean)).sum((0, 2, 3)), **exact)
        if cut is not None:
            centred = images(cut_y, k) - norms[1][k][2][None, :, None, None]
            torch.testing.assert_close(totals[2], (expected * centred).sum((0, 2, 3)), **exact)


@pytest.mark.parametrize("name", [*SHAPES, *ONE_TAP])
@pytest.mark.parametrize(("blocks", "normalised"), [(1, False), (1000, False), (1, True)])
def test_the_gradient_of_the_filters_is_exact(
    name: str, blocks: int, normalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = {**SHAPES, **ONE_TAP}[name]
    monkeypatch.setattr(tiles, "BLOCKS", blocks)
    case = Case(c)
    x, numbers = case.input(normalised)
    size = case.filters.shape[1]
    grad = torch.full((K, size + 16), 77.0)
    parts = torch.full((tiles.parts_size(K, B, c),), torch.nan)
    launches.weight_gradient(case.at, c, x, case.gradient, grad, parts)
    for k in range(K):
        expected = conv2d_weight(
            images(numbers, k), case.weight(k).shape, images(case.gradient, k), stride=c.stride, padding=case.padding
        )
        assert torch.equal(grad[k, :size].view(c.outside, c.extent, c.extent, c.inside).permute(0, 3, 1, 2), expected)
        assert (grad[k, size:] == 77.0).all()


def small(statistics: bool = False) -> nn.Module:
    """Every kind of layer, as narrow as the kernels take it; some may have running statistics."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32, track_running_stats=False), nn.ReLU(),
        ResidualBlock(32, 32, 1, statistics=False), ResidualBlock(32, 64, 2, statistics=statistics),
        ResidualBlock(64, 64, 2, statistics=False), ResidualBlock(64, 64, 2, statistics=statistics),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def pictures(crop: int) -> Pixels:
    make = np.random.default_rng(0)
    coarse = make.integers(0, 256, size=(40, 3, 8, 8), dtype=np.uint8)
    every = np.repeat(np.repeat(coarse, 4, 2), 4, 3)  # smooth, as pictures are
    labels = make.integers(0, 10, size=40)
    return Pixels.of(every, np.arange(40), labels, mean=(0.5, 0.4, 0.5), std=(0.2, 0.3, 0.2), crop=crop)


class Rounded(torch.autograd.Function):
    """Rounds to bfloat16, forward and backward."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.to(HALF).float()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:  # type: ignore[override]
        return g.to(HALF).float()


def rounded(module: nn.Module) -> nn.Module:
    """The same network, whose convolutions and activations are rounded to bfloat16 where the kernels do it."""

    def forward(x: Tensor) -> Tensor:
        layers = list(module)  # type: ignore[call-overload]
        x = after(layers[0], layers[1], x.to(HALF).float()).relu()
        for block in layers[3:-3]:
            x = Rounded.apply(x)
            a, a_norm, _, b, b_norm = block.residual
            inner = Rounded.apply(after(a, a_norm, x).relu())
            cut = x if isinstance(block.shortcut, nn.Identity) else after(block.shortcut[0], block.shortcut[1], x)
            x = (after(b, b_norm, inner) + cut).relu()
        return layers[-1](layers[-2](layers[-3](Rounded.apply(x))))

    def after(convolution: nn.Conv2d, norm: nn.Module, x: Tensor) -> Tensor:
        c = convolution
        weight = c.weight + (c.weight.to(HALF).float() - c.weight).detach()
        return norm(Rounded.apply(conv2d(x, weight, stride=c.stride, padding=c.padding)))

    module.forward = forward  # type: ignore[method-assign]
    return module


def plain_gradient(module: nn.Module, row: Tensor, x: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Autograd's gradient as a flat row, and the loss."""
    layout = Layout.of_parameters(module)
    parameters = {name: view.clone().requires_grad_() for name, view in layout.views(row)}
    loss = cross_entropy(functional_call(module, parameters, (x,)), labels)
    found = torch.autograd.grad(loss, list(parameters.values()))
    return torch.cat([g.reshape(-1) for g in found]), loss.item()


@pytest.mark.timeout(600)  # 25 s on a quiet machine
@pytest.mark.parametrize("crop", [4])
def test_a_step_is_that_of_autograd(crop: int) -> None:
    module, pixels = small(statistics=True), pictures(crop)
    network = ResidualNetwork.of(module, pixels.size)
    assert network is not None
    sgd = SGD(0.1, 0.9, 1e-2, True)
    clones = Clones(network, 3, pixels, sgd, 8)
    running = Layout.of_statistics(module)
    clones.start_statistics.copy_(running.flatten(dict(module.named_buffers())))
    layout = Layout.of_parameters(module)
    start = layout.flatten(dict(module.named_parameters()))
    make = np.random.default_rng(1)
    schedules = [
        plan([(1, np.arange(first, last))], batch=8, rng=make, flip=True, crop=crop)
        for first, last in [(0, 13), (13, 19)]
    ]
    idle = plan([], batch=8, rng=make)
    stack = Stack.of([*schedules, idle], 8)
    schedule = {name: torch.from_numpy(a) for name, a in Graph.arrays(stack).items()}
    clones.begin(start)
    t = torch.zeros(1, dtype=torch.int64)
    clones.velocity.normal_(generator=torch.Generator().manual_seed(0))  # a fresh optimiser forgets it
    clones.scheduled_step(schedule, t)
    assert int(t) == 1
    moved = clones.models()
    assert torch.equal(moved[2], start)
    assert torch.equal(clones.statistics[2], clones.start_statistics)
    assert clones.loss[2] == 0.0
    for k, plan_of in enumerate(schedules):
        n = int(plan_of.counts[0])
        flips = None if plan_of.flips is None else torch.from_numpy(plan_of.flips[0, :n])
        crops = None if plan_of.crops is None else torch.from_numpy(plan_of.crops[0, :n])
        samples = torch.from_numpy(plan_of.samples[0, :n])
        x = pixels.normalise(pixels.batch(samples, flips, crops))
        plain = rounded(small(statistics=True))
        gradient, loss = plain_gradient(plain, start, x, pixels.labels[samples])
        after = running.flatten(dict(plain.named_buffers()))
        assert not torch.equal(after, clones.start_statistics)
        assert torch.allclose(clones.statistics[k], after, rtol=2e-3, atol=1e-3)
        assert float(clones.loss[k]) == pytest.approx(loss, rel=0.002)
        theta, velocity = start.clone(), torch.zeros_like(start)
        sgd.step(theta, gradient, velocity)
        off = (moved[k] - theta).norm() / (theta - start).norm()
        assert off < 0.12, name_of_worst(layout, moved[k] - start, theta - start)  # bfloat16 itself: 0.18 from float32


def name_of_worst(layout: Layout, found: Tensor, expected: Tensor) -> dict[str, float]:
    """How far off every parameter is, for the message."""
    names = layout.names
    parts = {n: (layout.view(found, n), layout.view(expected, n)) for n in names}
    return {n: round(float((a - b).norm() / b.norm()), 4) for n, (a, b) in parts.items()}


def test_parameters_keep_their_places() -> None:
    module = resnet18_half(3, 32, 32, 10)
    network = ResidualNetwork.of(module, (3, 32, 32))
    assert network is not None
    row = torch.arange(2797610.0)
    inside = torch.cat((row, torch.zeros(1)))[network.order]
    assert torch.equal(inside[network.places], row)
    c = network.blocks[2].shortcut
    assert c is not None
    plain = dict(Layout.of_parameters(module).views(row))["5.shortcut.0.weight"]
    assert torch.equal(inside[c.filters :][: c.outside * c.inside].view(c.outside, c.inside), plain[:, :, 0, 0])
    assert all(c.filters % 8 == 0 and c.norm % 8 == 0 for c in network.convolutions)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.append(nn.ReLU()),
        lambda m: m.__setitem__(0, nn.Conv2d(3, 32, 3, 1, 1)),
        lambda m: m.__setitem__(0, nn.Conv2d(3, 32, 5, 1, 2, bias=False)),
        lambda m: m.__setitem__(1, nn.BatchNorm2d(32, momentum=None)),
        lambda m: m.register_buffer("more", torch.zeros(3)),
        lambda m: m.__setitem__(1, nn.BatchNorm2d(32, eps=1e-3, track_running_stats=False)),
        lambda m: m.__setitem__(3, nn.Identity()),
        lambda m: m.__setitem__(3, ResidualBlock(32, 48, 1, statistics=False)),
        lambda m: [m.__setitem__(6, ResidualBlock(64, 192, 2, statistics=False)), m.__setitem__(9, nn.Linear(192, 10))],
        lambda m: m.__setitem__(3, ResidualBlock(32, 64, 1, statistics=False)),
        lambda m: m.__setitem__(9, nn.Linear(64, 10, bias=False)),
    ],
)
def test_other_networks_are_left_to_others(change: object) -> None:
    module = small()
    assert ResidualNetwork.of(module, (3, 32, 32)) is not None
    change(module)  # type: ignore[operator]
    assert ResidualNetwork.of(module, (3, 32, 32)) is None


def test_other_images_and_modules_are_left_to_others() -> None:
    assert ResidualNetwork.of(small(), (3, 28, 28)) is None
    assert ResidualNetwork.of(small(), (4, 32, 32)) is None
    assert ResidualNetwork.of(nn.Linear(3, 2), (3, 32, 32)) is None


def test_running_statistics_keep_their_places() -> None:
    module = resnet18(3, 32, 32, 10)
    network, layout = ResidualNetwork.of(module, (3, 32, 32)), Layout.of_statistics(module)
    assert network is not None
    assert network.statistics == layout.size
    for c, name in ((network.stem, "1"), (network.blocks[2].second, "5.residual.4")):
        assert c.running == layout.starts[layout.names.index(f"{name}.running_mean")]
        assert c.running + c.outside == layout.starts[layout.names.index(f"{name}.running_var")]
        assert c.momentum == 0.1


class Eager:
    """As `Graph`, without a graph; the warm-up before a capture must not leave anything behind."""

    def __init__(self, chunk: Clones) -> None:
        self.chunk = chunk

    def run(self, start: Tensor, stack: Stack) -> None:
        self.chunk.statistics.fill_(77.0)
        schedule = {name: torch.from_numpy(a) for name, a in Graph.arrays(stack).items()}
        self.chunk.begin(start)
        t = torch.zeros(1, dtype=torch.int64)
        for _ in range(stack.samples.shape[1]):
            self.chunk.scheduled_step(schedule, t)


@pytest.mark.timeout(600)
def test_the_trainer_returns_statistics_and_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "Graph", Eager)
    module, pixels = small(statistics=True), pictures(0)
    start, make = Model.of(module), np.random.default_rng(2)
    start.statistics.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(1))
    start.counters.fill_(5)
    work = [plan([(1, np.arange(3))], batch=8, rng=make), plan([], batch=8, rng=make)]
    sgd = SGD(0.1, 0.9, 1e-2, True)
    found = trainer.ResidualTrainer(module, pixels, sgd, 8, at_once=2).train(start, work)
    exact = SequentialTrainer(module, pixels, sgd, 8).train(start, work)
    assert torch.equal(found.counters, exact.counters)
    assert found.counters.tolist()[0] == [6] * start.counters.numel()
    assert torch.equal(found.statistics[1], start.statistics)
    assert torch.allclose(found.statistics[0], exact.statistics[0], atol=0.02)  # bfloat16
