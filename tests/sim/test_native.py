"""The CUDA kernels themselves, run on a CPU by `emulate.h`: they train as plain PyTorch does."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from honestly.sim.models import build
from honestly.sim.train import native, tensorcores
from honestly.sim.train.base import Model
from honestly.sim.train.batched import BatchedTrainer, Chunk
from honestly.sim.train.flat import Layout
from honestly.sim.train.program import compile_program
from honestly.sim.train.replay import Graph
from honestly.sim.train.schedule import Schedule, Stack, plan
from tests.sim.test_train import RATE, by_hand, store, uneven_work


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], ctypes.CDLL]:
    """All kernels of one set of sizes, compiled by g++; `start_NAME` runs one of them."""
    if shutil.which("g++") is None:
        pytest.fail("this test compiles the kernels for the CPU: install g++")
    folder = tmp_path_factory.mktemp("kernels")

    @cache
    def library(defines: tuple[str, ...]) -> ctypes.CDLL:
        number = len(list(folder.iterdir()))
        code, made = folder / f"{number}.cpp", folder / f"{number}.so"
        text = native.source(defines)
        tensor = [line for line in defines if line.startswith("TENSOR_")]
        names = [name for part in sorted(KERNELS.keys() & set(defines)) for name in KERNELS[part]]
        starts = "".join(_start(name, text) for name in ([line.lower() for line in tensor] if tensor else names))
        code.write_text(f'#include "{Path(__file__).with_name("emulate.h")}"\n{text}\n{starts}')
        subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", code, "-o", made], check=True)
        return ctypes.CDLL(str(made))

    return library


KERNELS = {
    "CONVOLUTION": ("forward", "weight_gradient", "collect"), "INWARD": ("input_gradient",),
    "STEP": ("gather", "cross_entropy", "sgd", "next_step"), "DENSE": ("bias_relu", "bias_relu_back"),
}  # fmt: skip


def _start(name: str, text: str) -> str:
    parameters = re.search(rf"\b{name}\((.*?)\) {{", text, re.DOTALL)
    assert parameters is not None
    kinds = [p.strip().rpartition(" ")[0].replace("__restrict__", "") for p in parameters[1].split(",")]
    taken = ", ".join(f"*(({kind}*)args[{n}])" for n, kind in enumerate(kinds))
    head = f'extern "C" void start_{name}(const int* grid, int threads, void** args)'
    return f"{head} {{ run(grid, threads, [&] {{ {name}({taken}); }}); }}\n"


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, libraries: Callable[[tuple[str, ...]], ctypes.CDLL]) -> None:
    """Kernels run on the CPU."""

    def compiled(name: str, defines: tuple[str, ...], device: int | None) -> Callable[..., None]:
        start = getattr(libraries(defines), f"start_{name}")

        def kernel(*, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
            held = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a) for a in args]
            pointers = (ctypes.c_void_p * len(held))(*(ctypes.cast(ctypes.byref(h), ctypes.c_void_p) for h in held))
            start((ctypes.c_int * 3)(*grid), block[0], pointers)

        return kernel

    monkeypatch.setattr(native, "compiled", compiled)
    monkeypatch.setattr(native, "works_on", lambda device: True)
    monkeypatch.setattr(native, "BLOCKS", 1)
    monkeypatch.setattr(tensorcores, "available", lambda device: True)


def train(
    module: nn.Module, work: list[Schedule], batch: int, size: tuple[int, int, int], **options: Any
) -> torch.Tensor:
    """What a graph replays, step by step."""
    chunk = Chunk(module, len(work), store(size, **options), RATE, batch, fused=True)
    assert chunk.native is not None
    stack = Stack.of(work, batch)
    schedule = {name: torch.from_numpy(values) for name, values in Graph._arrays(stack).items()}
    chunk.begin(Model.of(module).theta)
    t = torch.zeros(1, dtype=torch.int64)
    for _ in range(stack.samples.shape[1]):
        chunk.scheduled(schedule, t)
    return chunk.theta


def test_lenet_trains_as_plain_pytorch_does() -> None:
    """Two phases with a fresh optimiser each, a short batch, and a client that is finished before the other."""
    module, size = build("lenet5", (1, 32, 32), 10, 1), (1, 32, 32)
    rng = np.random.default_rng(0)
    work = [
        plan([(1, np.arange(5)), (1, np.arange(40, 46))], batch=6, rng=rng),
        plan([(1, np.arange(6))], batch=6, rng=rng),
    ]
    got = train(module, work, 6, size)
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
    x = pixels.normalised(pixels.images)
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
def test_layers_without_a_kernel_take_the_plain_way(module: nn.Module) -> None:
    layout = Layout.of_parameters(module)
    theta = torch.zeros((2, layout.size))
    program = compile_program(module, layout, theta, theta.clone(), size=(1, 8, 8), fused=True)
    assert program is not None
    assert not program.native


def test_the_same_bits_again() -> None:
    module, work = ODD[0], uneven_work(16)[1:3]
    assert np.array_equal(*(train(module, work, 16, (1, 8, 8)).numpy() for _ in range(2)))
