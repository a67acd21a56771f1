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
from honestly.sim.train import native
from honestly.sim.train.base import Model
from honestly.sim.train.batched import BatchedTrainer, Chunk, Graph
from honestly.sim.train.flat import Layout
from honestly.sim.train.program import compile_program
from honestly.sim.train.schedule import Schedule, Stack
from tests.sim.test_train import RATE, by_hand, store, uneven_work

SOURCE = Path(native.__file__).with_name("kernels.cu")


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels are compiled by g++ and run on the CPU."""
    if shutil.which("g++") is None:
        pytest.fail("this test compiles the kernels for the CPU: install g++")

    @cache
    def compiled(name: str, defines: tuple[str, ...], device: int | None) -> Callable[..., None]:
        text = SOURCE.read_text()
        parameters = re.search(rf"\b{name}\((.*?)\) {{", text, re.DOTALL)
        assert parameters is not None
        kinds = [p.strip().rpartition(" ")[0].replace("__restrict__", "") for p in parameters[1].split(",")]
        lines = "".join(f"#define {line}\n" for line in defines)
        taken = ", ".join(f"*(({kind}*)args[{n}])" for n, kind in enumerate(kinds))
        main = f'extern "C" void start(const int* grid, int threads, void** args) {{ run(grid, threads, [&] {{ {name}({taken}); }}); }}\n'
        number = len(list(tmp_path.iterdir()))
        code, library = tmp_path / f"{number}.cpp", tmp_path / f"{number}.so"
        code.write_text(f'#include "{Path(__file__).with_name("emulate.h")}"\n{lines}{text}\n{main}')
        subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", code, "-o", library], check=True)
        start = ctypes.CDLL(str(library)).start

        def kernel(*, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
            assert all(
                a.is_contiguous() or a.dim() > 2 or a.stride(-1) == 1 for a in args if isinstance(a, torch.Tensor)
            )
            held = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a) for a in args]
            pointers = (ctypes.c_void_p * len(held))(*(ctypes.cast(ctypes.byref(h), ctypes.c_void_p) for h in held))
            start((ctypes.c_int * 3)(*grid), block[0], pointers)

        return kernel

    monkeypatch.setattr(native, "compiled", compiled)
    monkeypatch.setattr(native, "works_on", lambda device: True)
    monkeypatch.setattr(native, "BLOCKS", 1)


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


@pytest.mark.parametrize(("name", "size"), [("lenet5", (1, 32, 32)), ("mlp", (3, 8, 8))])
def test_kernels_train_as_plain_pytorch_does(name: str, size: tuple[int, int, int]) -> None:
    module, work = build(name, size, 10, 1), uneven_work(16)
    got = train(module, work, 16, size)
    for k, schedule in enumerate(work):
        expected, _ = by_hand(module, store(size), schedule)
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
    work = uneven_work(40)[:3]
    got = train(module, work, 40, size)
    for k, schedule in enumerate(work):
        expected, _ = by_hand(module, store(size), schedule)
        assert (got[k] - expected).abs().max() < 5e-6


def test_mirrored_and_cropped_images_come_through_pytorch() -> None:
    module = build("lenet5", (1, 32, 32), 10, 1)
    work = uneven_work(16, flip=True, crop=2)[:2]
    got = train(module, work, 16, (1, 32, 32), crop=2)
    plain = BatchedTrainer(module, store((1, 32, 32), crop=2), RATE, 16, at_once=2, fused=False)
    assert (got - plain.train(Model.of(module), work).theta).abs().max() < 5e-6


def test_scores_of_a_test_set_of_any_size() -> None:
    module = build("lenet5", (1, 32, 32), 10, 1)
    layout, pixels = Layout.of_parameters(module), store((1, 32, 32), 290)
    theta = Model.of(module).theta[None].clone()
    program = compile_program(module, layout, theta, torch.zeros_like(theta), size=(1, 32, 32), fused=True)
    assert program is not None and program.native
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
    assert program is not None and not program.native


def test_the_same_bits_again() -> None:
    module, work = build("lenet5", (1, 32, 32), 10, 1), uneven_work(16)[1:3]
    assert np.array_equal(*(train(module, work, 16, (1, 32, 32)).numpy() for _ in range(2)))
