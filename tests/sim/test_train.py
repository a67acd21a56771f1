"""The batched program, the sequential trainer and plain PyTorch give the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from compiler import needs_compiler
from torch import nn

from honestly.kernels import find_compiler
from honestly.sim.models import build
from honestly.sim.train.batched import BatchedTrainer
from honestly.sim.train.compiled.trainer import CompiledTrainer
from honestly.sim.train.flat import Layout
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.program import compile_program
from honestly.sim.train.schedule import Schedule, plan
from honestly.sim.train.sequential import SequentialTrainer
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model, Trainer

RATE = SGD(0.05, 0.9, 1e-3)
TOLERANCE = 2e-6


def store(size: tuple[int, int, int], n: int = 200, crop: int = 0) -> Pixels:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, *size), dtype=np.uint8)
    # a large uniform corner, as in real images: the maxima of many pooling blocks are ties
    images[:, :, : size[1] // 2, : size[2] // 2] = 0
    half = [0.5] * size[0]
    return Pixels.of(images, np.arange(n), rng.integers(0, 10, n), mean=half, std=half, crop=crop)


def uneven_work(batch: int, **options: object) -> list[Schedule]:
    """Clients of different sizes, partial last batches, a two-phase client, an idle one and one of a single image."""
    sizes = ((1, 5), (3, 2 * batch), (2, batch + 3))
    work = [
        plan([(epochs, np.arange(7 * k, 7 * k + n))], batch=batch, rng=np.random.default_rng(k), **options)  # type: ignore[arg-type]
        for k, (epochs, n) in enumerate(sizes)
    ]
    two = [(2, np.arange(50, 50 + batch // 2)), (2, np.arange(40, 60 + batch))]
    work.append(plan(two, batch=batch, rng=np.random.default_rng(9), **options))  # type: ignore[arg-type]
    work.append(plan([(2, np.array([3]))], batch=batch, rng=np.random.default_rng(10), **options))  # type: ignore[arg-type]
    work.append(plan([(2, np.array([], dtype=np.int64))], batch=batch, rng=np.random.default_rng(11), **options))  # type: ignore[arg-type]
    return work


def by_hand(module: nn.Module, pixels: Pixels, schedule: Schedule) -> tuple[torch.Tensor, nn.Module]:
    """Plain PyTorch: `torch.optim.SGD`, made anew where the schedule says so."""
    module = copy.deepcopy(module).train()
    optimiser = torch.optim.SGD(
        module.parameters(), RATE.lr, momentum=RATE.momentum, weight_decay=RATE.weight_decay, nesterov=RATE.nesterov
    )
    for t in range(schedule.steps):
        if schedule.fresh[t]:
            optimiser.state.clear()
        chosen = schedule.samples[t, : schedule.counts[t]]
        x = (pixels.images[chosen].float() / 255 - 0.5) / 0.5
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), pixels.labels[chosen]).backward()
        optimiser.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()]), module


@pytest.mark.parametrize(("name", "size"), [("lenet5", (1, 32, 32)), ("cnn", (1, 8, 8)), ("mlp", (3, 8, 8))])
@pytest.mark.parametrize("at_once", [1, 4, None, pytest.param("compiled", marks=needs_compiler)])
def test_batched_equals_plain_pytorch(name: str, size: tuple[int, int, int], at_once: int | str | None) -> None:
    module, pixels, work = build(name, size, 10, 1), store(size), uneven_work(16)
    start = Model.of(module)
    if isinstance(at_once, str):
        got = CompiledTrainer(module, pixels, RATE, 16).train(start, work)
    else:
        got = BatchedTrainer(module, pixels, RATE, 16, at_once=at_once).train(start, work)
    for k, schedule in enumerate(work):
        expected, _ = by_hand(module, pixels, schedule)
        assert (got.theta[k] - expected).abs().max() < TOLERANCE
        if schedule.steps:
            assert (got.theta[k] - start.theta).abs().max() > 1e-3  # it did learn something
    assert torch.equal(got.theta[-1], start.theta)  # no samples, no change


def test_sequential_equals_plain_pytorch_with_batch_normalisation() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
    )  # fmt: skip
    pixels, work = store((1, 8, 8)), uneven_work(16)[:4]
    got = SequentialTrainer(module, pixels, RATE, 16).train(Model.of(module), work)
    for k, schedule in enumerate(work):
        expected, after = by_hand(module, pixels, schedule)
        assert (got.theta[k] - expected).abs().max() < TOLERANCE
        norm = after[1]
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        statistics = torch.cat([norm.running_mean, norm.running_var])
        assert torch.allclose(got.statistics[k], statistics, atol=1e-6)
        assert got.counters[k].tolist() == [schedule.steps]


@pytest.mark.parametrize("crop", [0, 2])
@pytest.mark.parametrize(
    "trainer", [partial(BatchedTrainer, at_once=6), pytest.param(CompiledTrainer, marks=needs_compiler)]
)
def test_batched_equals_sequential_with_flips_and_crops(crop: int, trainer: Callable[..., Trainer]) -> None:
    module, pixels = build("cnn", (1, 8, 8), 10, 0), store((1, 8, 8), crop=crop)
    work = uneven_work(16, flip=True, crop=crop)
    start = Model.of(module)
    a = trainer(module, pixels, RATE, 16).train(start, work)
    b = SequentialTrainer(module, pixels, RATE, 16).train(start, work)
    assert (a.theta - b.theta).abs().max() < TOLERANCE
    assert torch.allclose(a.loss, b.loss, atol=1e-5)


def test_evaluation_is_the_same_in_all_trainers() -> None:
    module, pixels = build("lenet5", (1, 32, 32), 10, 0), store((1, 32, 32), n=131)
    model = Model.of(module)
    a = BatchedTrainer(module, pixels, RATE, 16).logits(model, pixels)
    b = SequentialTrainer(module, pixels, RATE, 16).logits(model, pixels)
    x = (pixels.images.float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        expected = module(x)
    assert torch.allclose(a, expected, atol=1e-5)
    assert torch.allclose(b, expected, atol=1e-5)
    if find_compiler() is not None:
        c = CompiledTrainer(module, pixels, RATE, 16).logits(model, store((1, 32, 32), n=131))
        assert torch.allclose(c, expected, atol=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(2, 3, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2)],  # pooling leaves an odd row out
        [nn.Conv2d(2, 3, (3, 2), padding=(1, 0)), nn.MaxPool2d(2), nn.ReLU()],
        [nn.Conv2d(2, 4, 1, bias=False), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU()],
        [nn.Identity(), nn.MaxPool2d(2)],
    ],
)
@pytest.mark.parametrize("K", [1, 2])  # one client alone works in rows
def test_every_layer_has_the_gradient_of_autograd(layers: list[nn.Module], K: int) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(*layers)
    features = body(torch.zeros(1, 2, 7, 9)).flatten().numel()
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 5, bias=False))
    layout = Layout.of_parameters(module)
    theta = torch.stack([layout.flatten(dict(module.named_parameters())) * scale for scale in (1.0, 0.5)[:K]])
    grad = torch.full_like(theta, torch.nan)
    program = compile_program(module, layout, theta, grad)
    assert program is not None
    x = torch.randint(0, 3, (K, 6, 2, 7, 9)).float()  # few values: many ties
    y = torch.randint(0, 5, (K, 6))
    program.loss_and_gradient(x.permute(0, 3, 2, 4, 1).contiguous(), y, torch.full((K, 6), 1 / 6))
    for k in range(K):
        parameters = {name: v.clone().requires_grad_() for name, v in layout.views(theta[k])}
        loss = nn.functional.cross_entropy(torch.func.functional_call(module, parameters, (x[k],)), y[k])
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(parameters.values()))])
        assert torch.allclose(grad[k], expected, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(1, 2, 3, stride=2), nn.MaxPool2d(3), nn.Tanh(), nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(2)],
)
def test_unknown_layers_go_to_the_sequential_trainer(layer: nn.Module) -> None:
    assert not BatchedTrainer.supports(nn.Sequential(layer))


def test_momentum_is_reset_between_phases() -> None:
    schedule = plan([(1, np.arange(4)), (2, np.arange(8))], batch=4, rng=np.random.default_rng(0))
    assert schedule.fresh.tolist() == [True, True, False, False, False]
    assert schedule.images == 4 + 16


def test_schedules_use_every_sample_once_per_epoch() -> None:
    members = np.arange(100, 137)
    schedule = plan([(3, members)], batch=8, rng=np.random.default_rng(0))
    flat = np.concatenate([s[:n] for s, n in zip(schedule.samples, schedule.counts, strict=True)])
    for epoch in flat.reshape(3, 37):
        assert sorted(epoch) == members.tolist()
    assert not np.array_equal(flat[:37], flat[37:74])


def test_crops_and_flips_are_those_of_the_image() -> None:
    pixels = store((1, 8, 8), crop=2)
    original = np.pad(np.asarray(pixels.images[:, :, 2:-2, 2:-2]), ((0, 0), (0, 0), (2, 2), (2, 2)))
    rows = torch.tensor([5, 6])
    got = pixels.batch(rows, torch.tensor([True, False]), torch.tensor([[0, 3], [4, 1]]))
    assert np.array_equal(got[0], original[5, :, 0:8, 3:11][:, :, ::-1])
    assert np.array_equal(got[1], original[6, :, 4:12, 1:9])
    assert np.array_equal(pixels.batch(rows), original[5:7, :, 2:10, 2:10])


def test_parameters_of_the_papers_models() -> None:
    def count(name: str, channels: int) -> int:
        return sum(p.numel() for p in build(name, (channels, 32, 32), 10, 0).parameters())

    assert (count("lenet5", 1), count("resnet18", 3), count("resnet18_half", 3)) == (61_706, 11_173_962, 2_797_610)


def test_the_seed_alone_decides_the_initial_model() -> None:
    torch.manual_seed(123)
    a = Model.of(build("cnn", (1, 8, 8), 10, 5)).theta
    b = Model.of(build("cnn", (1, 8, 8), 10, 5)).theta
    c = Model.of(build("cnn", (1, 8, 8), 10, 6)).theta
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize("trainer", [BatchedTrainer, pytest.param(CompiledTrainer, marks=needs_compiler)])
def test_the_number_of_threads_does_not_change_the_bits(trainer: Callable[..., Trainer]) -> None:
    module, pixels, work = build("cnn", (1, 8, 8), 10, 1), store((1, 8, 8)), uneven_work(16)
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(trainer(module, pixels, RATE, 16).train(Model.of(module), work).theta)
    assert torch.equal(*found)
