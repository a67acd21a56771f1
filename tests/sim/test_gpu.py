"""On a CUDA device: the captured graphs and the fused kernels give the plain path's numbers (`pytest -m gpu`)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from honestly.sim.experiment import Experiment
from honestly.sim.models import build
from honestly.sim.rounds import Federation
from honestly.sim.train.batched import BatchedTrainer
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.residual.trainer import ResidualTrainer
from honestly.sim.train.schedule import plan
from honestly.sim.train.sequential import SequentialTrainer, Speed
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model

pytestmark = pytest.mark.gpu
RATE = SGD(0.05, 0.9, 1e-3)


def store(size: tuple[int, int, int], device: str) -> Pixels:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, *size), dtype=np.uint8)
    images[:, :, : size[1] // 2] = 0  # ties in pooling
    labels = rng.integers(0, 10, 300)
    return Pixels.of(images, np.arange(300), labels, mean=[0.5], std=[0.5], crop=2, device=device)


@pytest.mark.parametrize(("name", "side"), [("lenet5", 32), ("cnn", 8), ("mlp", 8)])
def test_every_way_to_train_on_a_gpu_equals_the_plain_path(name: str, side: int) -> None:
    module = build(name, (1, side, side), 10, 0)
    parts = [np.arange(k * 30, k * 30 + 10 + 40 * k) for k in range(5)]
    work = [
        plan([(1, p[:10]), (2, p)], batch=32, rng=np.random.default_rng(k), flip=True, crop=2)
        for k, p in enumerate(parts)
    ]
    cpu, gpu = store((1, side, side), "cpu"), store((1, side, side), "cuda")
    expected = SequentialTrainer(module, cpu, RATE, 32).train(Model.of(module), work)
    start = Model.of(module, "cuda")
    trainers = [BatchedTrainer(module, gpu, RATE, 32, at_once=n, fused=f) for n in (2, 5) for f in (None, False)]
    lanes = [SequentialTrainer(module, gpu, RATE, 32, speed=Speed(lanes=n)) for n in (1, 3)]
    # LeNet-5's second convolution has 16 bits on the tensor cores. A ReLU or a pool whose inputs are nearer than that
    # may decide the other way, and a gradient goes elsewhere. (Training moves parameters by up to 0.06.)
    fused = {id(t) for t in trainers if name == "lenet5" and t.fused is None}
    for trainer in (*trainers, *lanes):
        for _ in range(2):  # the second time replays what the first captured
            got = trainer.train(start, work)
            assert (got.theta.cpu() - expected.theta).abs().max() < (1e-3 if id(trainer) in fused else 5e-6)
    scores = SequentialTrainer(module, cpu, RATE, 32).logits(Model.of(module), cpu)
    for trainer in (*trainers, *lanes):
        assert torch.allclose(trainer.logits(start, gpu).cpu(), scores, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet18_half", "resnet18"])
def test_residual_networks_train_as_in_pytorch(name: str) -> None:
    """Bfloat16 leads every order of summation elsewhere, so: no further from float32 than PyTorch's own bfloat16."""
    module, make = build(name, (3, 32, 32), 10, 0), np.random.default_rng(0)
    coarse = make.integers(0, 256, size=(1300, 3, 8, 8), dtype=np.uint8)
    smooth = np.repeat(np.repeat(coarse, 4, 2), 4, 3)
    labels = (coarse[:, 0].mean((1, 2)) > 128) * 5 + make.integers(0, 2, 1300)
    pixels = Pixels.of(smooth, np.arange(1300), labels, mean=[0.5] * 3, std=[0.2] * 3, crop=4, device="cuda")
    parts = [np.arange(300 * k, 300 * k + 300 + k) for k in range(4)]
    work = [plan([(1, p)], batch=128, rng=np.random.default_rng(k), flip=True, crop=4) for k, p in enumerate(parts)]
    start, rate = Model.of(module, "cuda"), SGD(0.01, 0.9, 1e-4)
    assert ResidualTrainer.supports(module, pixels)
    ours = ResidualTrainer(module, pixels, rate, 128)
    got, again = ours.train(start, work), ours.train(start, work)
    assert torch.equal(got.theta, again.theta)
    assert torch.equal(ResidualTrainer(module, pixels, rate, 128, at_once=3).train(start, work).theta, got.theta)
    exact, half = (
        SequentialTrainer(module, pixels, rate, 128, speed=Speed(bf16=bf16)).train(start, work)
        for bf16 in (False, True)
    )

    def off(theta: torch.Tensor) -> torch.Tensor:
        return (theta - exact.theta).norm(dim=1) / (exact.theta - start.theta).norm(dim=1)

    assert (off(got.theta) < 1.3 * off(half.theta)).all()
    assert torch.allclose(got.loss, exact.loss, rtol=0.01)
    assert torch.equal(got.counters, exact.counters)
    assert torch.allclose(got.statistics, exact.statistics, rtol=0.05, atol=0.05)


def test_a_federation_on_a_gpu_follows_the_one_on_the_cpu() -> None:
    e = Experiment.of({"rounds": 2, "epochs": 1, "attack": "random", "malicious": 0.3, "partition": "iid"})
    runs = [[r.numbers for r in Federation(e, device=d).rounds()] for d in ("cpu", "cuda")]
    for a, b in zip(*runs, strict=True):
        assert a["attacked"] == b["attacked"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)


def test_noise_that_is_drawn_while_clients_train_gives_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    e = Experiment.of({"rounds": 3, "epochs": 1, "attack": "random", "malicious": 0.3, "partition": "iid"})
    ahead = [r.numbers for r in Federation(e, device="cuda").rounds()]
    monkeypatch.setattr(Federation(e, device="cuda").attack.__class__, "noise_ahead", False)
    assert [r.numbers for r in Federation(e, device="cuda").rounds()] == ahead
