"""The trainer's compiled program: the same numbers as autograd, on any processor."""

from __future__ import annotations

import copy
import ctypes
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from compiler import needs_compiler
from torch import nn

from honestly.kernels import build
from honestly.sim.experiment import Experiment
from honestly.sim.models import build as build_model
from honestly.sim.train.batched import BatchedTrainer
from honestly.sim.train.choose import choose_trainer
from honestly.sim.train.compiled import trainer as trainers
from honestly.sim.train.compiled.build import PROGRAM
from honestly.sim.train.compiled.structures import layers_of
from honestly.sim.train.compiled.trainer import CompiledTrainer
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.schedule import Schedule, plan
from honestly.sim.train.sequential import SequentialTrainer
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model


def pixels(size: tuple[int, int, int], n: int = 90) -> Pixels:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (n, *size), dtype=np.uint8)  # many values: hardly any ties, see below
    rows, half = rng.permutation(n), [0.5] * size[0]
    return Pixels.of(images, rows, rng.integers(0, 10, n), mean=half, std=half)


def schedules(batch: int = 32) -> list[Schedule]:
    sizes = (1, 17, 32, 70)
    return [plan([(2, np.arange(n))], batch=batch, rng=np.random.default_rng(n)) for n in sizes]


def model_of(layers: list[nn.Module], size: tuple[int, int, int], *, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = [copy.deepcopy(layer) for layer in layers]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()  # by the seed: the layers of SHAPES began with whatever chance gave
    features = nn.Sequential(*layers)(torch.zeros(1, *size)).flatten().numel()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 13), nn.ReLU(), nn.Linear(13, 10, bias=bias))


SHAPES: dict[str, tuple[list[nn.Module], tuple[int, int, int]]] = {
    "odd row left out": ([nn.Conv2d(2, 3, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2)], (2, 7, 9)),
    "uneven kernel": ([nn.Conv2d(2, 7, (3, 2), padding=(1, 0)), nn.MaxPool2d(2), nn.ReLU()], (2, 7, 9)),
    "one pixel, no bias": ([nn.Conv2d(3, 5, 1, bias=False), nn.MaxPool2d(2)], (3, 4, 6)),
    "wide kernel": ([nn.Conv2d(1, 2, 7, padding=3), nn.MaxPool2d(2), nn.ReLU()], (1, 9, 9)),
    "three deep": (
        [
            nn.Conv2d(1, 9, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(9, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 7, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        ],
        (1, 13, 12),
    ),
    "no convolution": ([], (2, 5, 3)),
}  # fmt: skip
RULES = (SGD(0.05, 0.9, 1e-3), SGD(0.05), SGD(0.05, 0.8, 0.0, nesterov=False))


def agrees(trainer: CompiledTrainer, module: nn.Module, store: Pixels, sgd: SGD) -> None:
    start, work = Model.of(module), schedules()
    got = trainer.train(start, work)
    expected = SequentialTrainer(module, store, sgd, 32).train(start, work)
    assert (got.theta - expected.theta).abs().max() < 2e-6
    assert (got.theta - start.theta).abs().max() > 1e-3
    assert torch.allclose(got.loss, expected.loss, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("sgd", RULES)
@pytest.mark.parametrize("name", SHAPES)
def test_it_trains_any_shape_as_autograd_does(name: str, sgd: SGD) -> None:
    layers, size = SHAPES[name]
    module, store = model_of(layers, size, bias=sgd.nesterov), pixels(size)
    agrees(CompiledTrainer(module, store, sgd, 32), module, store, sgd)


@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
def test_ties_go_to_the_first_maximum_as_in_autograd(name: str) -> None:
    """In arithmetic without rounding.

    With it, PyTorch's convolution may give two equal patches values that differ in the last bit,
    by processor and by where a tensor lies in memory; the maximum is then the one or the other.
    """
    layers, size = SHAPES[name]
    module, store = model_of(layers, size), pixels(size)
    for p in module.parameters():
        p.data = (p.data * 64).round() / 64
    images = (store.images % 3).to(torch.uint8)  # few values, all exact: many ties
    exact = Pixels(images, store.rows, store.labels, torch.ones(size[0]), torch.zeros(size[0]), crop=0)
    one_step = [plan([(1, np.arange(32))], batch=32, rng=np.random.default_rng(0))]
    start = Model.of(module)
    got = CompiledTrainer(module, exact, SGD(0.05), 32).train(start, one_step)
    expected = SequentialTrainer(module, exact, SGD(0.05), 32).train(start, one_step)
    assert (got.theta - expected.theta).abs().max() < 2e-6
    assert (got.theta - start.theta).abs().max() > 1e-3


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are processors of one family")
@pytest.mark.parametrize("processor", ["x86-64-v3", pytest.param("x86-64", marks=pytest.mark.slow)])
def test_narrower_vectors_give_the_same_numbers(
    processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "TUNING", ((f"-march={processor}",),))
    compiler = next(c for c in ("cc", "gcc", "clang") if shutil.which(c))
    program = ctypes.CDLL(str(PROGRAM.compile_to(tmp_path / "narrow", compiler)))
    monkeypatch.setattr(trainers, "library", lambda: program)
    for layers, size in SHAPES.values():
        module, store = model_of(layers, size), pixels(size)
        agrees(CompiledTrainer(module, store, RULES[0], 32), module, store, RULES[0])


@needs_compiler
def test_a_diverging_client_gives_nan_and_not_a_plausible_number() -> None:
    module, store = build_model("cnn", (1, 8, 8), 10, 0), pixels((1, 8, 8))
    got = CompiledTrainer(module, store, SGD(1e20), 32).train(Model.of(module), schedules()[3:])
    assert got.theta.isnan().any()
    assert got.loss.isnan().all()


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)],  # no pooling
        [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 10)],
        [nn.Flatten(), nn.ReLU(), nn.Linear(64, 10)],
        [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten()],
        [nn.Tanh(), nn.Flatten(), nn.Linear(64, 10)],
        [nn.Flatten(), *[nn.Linear(64, 64) for _ in range(33)]],
    ],
)
def test_other_models_are_left_to_pytorch(layers: list[nn.Module]) -> None:
    assert layers_of(nn.Sequential(*layers), (1, 8, 8)) is None


@needs_compiler
def test_numbers_out_of_bounds_never_reach_the_program() -> None:
    module, store = build_model("mlp", (1, 8, 8), 10, 0), pixels((1, 8, 8))
    trainer = CompiledTrainer(module, store, SGD(0.1), 4)
    good = plan([(1, np.arange(6))], batch=4, rng=np.random.default_rng(0), crop=1)
    with pytest.raises(ValueError, match="the crop 2: it must be from 0 to 0"):
        trainer.train(Model.of(module), [Schedule(good.samples, good.counts, good.fresh, crops=good.samples * 0 + 2)])
    with pytest.raises(ValueError, match="the sample 90: it must be from 0 to 89"):
        trainer.train(Model.of(module), [Schedule(good.samples + 90 - good.samples.max(), good.counts, good.fresh)])
    with pytest.raises(ValueError, match="the mini-batch's size 5: it must be from 1 to 4"):
        trainer.train(Model.of(module), [Schedule(good.samples, good.counts + 1, good.fresh)])
    store.labels[7] = 10
    with pytest.raises(ValueError, match="the label 10: it must be from 0 to 9"):
        CompiledTrainer(module, store, SGD(0.1), 4)


def test_without_it_pytorch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    module, store = build_model("cnn", (1, 8, 8), 10, 0), pixels((1, 8, 8))
    experiment = Experiment.of({"dataset": "digits"})
    if PROGRAM.library() is not None:
        assert isinstance(choose_trainer(module, store, experiment), CompiledTrainer)
    monkeypatch.setattr(trainers, "library", lambda: None)
    assert isinstance(choose_trainer(module, store, experiment), BatchedTrainer)
    with pytest.raises(ValueError, match="no compiled program"):
        CompiledTrainer(module, store, SGD(0.1), 4)
