"""The CUDA kernels themselves, run on a CPU by `emulate.h`: they train as plain PyTorch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from honestly.sim.models import build
from honestly.sim.train import tensorcores
from honestly.sim.train.batched import BatchedTrainer, ClientChunk
from honestly.sim.train.flat import Layout
from honestly.sim.train.program import compile_program
from honestly.sim.train.replay import Graph
from honestly.sim.train.schedule import Schedule, Stack, plan
from honestly.sim.train.trainer import Model
from tests.sim.emulation import emulated, libraries  # noqa: F401 - fixtures
from tests.sim.test_train import RATE, by_hand, store, uneven_work

pytestmark = pytest.mark.usefixtures("emulated")


def train(
    module: nn.Module, work: list[Schedule], batch: int, size: tuple[int, int, int], **options: Any
) -> torch.Tensor:
    """What a graph replays, step by step."""
    chunk = ClientChunk(module, len(work), store(size, **options), RATE, batch, fused=True)
    assert chunk.native is not None
    stack = Stack.of(work, batch)
    schedule = {name: torch.from_numpy(values) for name, values in Graph.arrays(stack).items()}
    chunk.begin(Model.of(module).theta)
    t = torch.zeros(1, dtype=torch.int64)
    for _ in range(stack.samples.shape[1]):
        chunk.scheduled_step(schedule, t)
    return chunk.theta


@pytest.mark.parametrize("cores", [True, False], ids=["tensor cores", "plain cores"])
def test_lenet_trains_as_plain_pytorch_does(cores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two phases with a fresh optimiser each, a short batch, and a client that is finished before the other."""
    monkeypatch.setattr(tensorcores, "available", lambda device: cores)
    module, size = build("lenet5", (1, 32, 32), 10, 1), (1, 32, 32)
    rng = np.random.default_rng(0)
    work = [
        plan([(1, np.arange(5)), (1, np.arange(40, 48))], batch=8, rng=rng),
        plan([(1, np.arange(6))], batch=8, rng=rng),
    ]
    got = train(module, work, 8, size)
    for k, schedule in enumerate(work):
        expected, _ = by_hand(module, store(size), schedule)
        assert (got[k] - expected).abs().max() < 5e-6
        assert (got[k] - Model.of(module).theta).abs().max() > 1e-4


def test_a_model_without_convolutions() -> None:
    module, work = build("mlp", (3, 8, 8), 10, 1), uneven_work(16)
    got = train(module, work, 16, (3, 8, 8))
    for k, schedule in enumerate(work):
        expected, _ = by_hand(module, store((3, 8, 8)), schedule)
        assert (got[k] - expected).abs().max() < 5e-6


torch.manual_seed(0)  # the layers of ODD take their weights here
ODD = [
    nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(5 * 3 * 3, 10)),
    nn.Sequential(  # no bias, no ReLU after the convolution; a row left over; more channels than a thread takes
        nn.Conv2d(2, 7, (2, 3), bias=False), nn.MaxPool2d(2), nn.Conv2d(7, 18, 2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(18, 10, bias=False),
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(2))
def test_odd_shapes(number: int) -> None:
    torch.manual_seed(0)
    module = ODD[number]
    size = ((1, 8, 8), (2, 8, 8))[number]
    work = [s for s in uneven_work(40)[:3] if s.steps < 5]
    assert len(work) == 2
    got = train(module, work, 40, size)
    for k, schedule in enumerate(work):
        expected, _ = by_hand(module, store(size), schedule)
        assert (got[k] - expected).abs().max() < 5e-6


def test_mirrored_and_cropped_images_come_through_pytorch() -> None:
    module = ODD[0]
    work = uneven_work(16, flip=True, crop=2)[:2]
    got = train(module, work, 16, (1, 8, 8), crop=2)
    plain = BatchedTrainer(module, store((1, 8, 8), crop=2), RATE, 16, at_once=2, fused=False)
    assert (got - plain.train(Model.of(module), work).theta).abs().max() < 5e-6


def test_scores_of_a_test_set_of_any_size() -> None:
    module = build("lenet5", (1, 32, 32), 10, 1)
    layout, pixels = Layout.of_parameters(module), store((1, 32, 32), 260)
    theta = Model.of(module).theta[None].clone()
    program = compile_program(module, layout, theta, torch.zeros_like(theta), size=(1, 32, 32), fused=True)
    assert program is not None
    assert program.native
    x = pixels.normalise(pixels.images)
    got = program.logits(pixels.batch_inner(pixels.images, 1))[0].t()
    assert torch.allclose(got, module(x), atol=1e-5)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 7), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)),
    ],
    ids=["padding", "large filter", "no pooling"],
)
def test_layers_without_a_kernel_use_the_plain_path(module: nn.Module) -> None:
    layout = Layout.of_parameters(module)
    theta = torch.zeros((2, layout.size))
    program = compile_program(module, layout, theta, theta.clone(), size=(1, 8, 8), fused=True)
    assert program is not None
    assert not program.native


def test_the_same_bits_twice() -> None:
    module, work = ODD[0], uneven_work(16)[1:3]
    assert np.array_equal(*(train(module, work, 16, (1, 8, 8)).numpy() for _ in range(2)))
