"""The CUDA kernels compiled by g++ and run on a CPU by `emulate.h`: fixtures for tests of what launches them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from honestly.sim.train import cuda, native, tensorcores


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, tuple[str, ...], cuda.Source], ctypes.CDLL]:
    """All kernels of one set of sizes, compiled by g++; `start_NAME` runs one of them."""
    if shutil.which("g++") is None:
        pytest.fail("this test compiles the kernels for the CPU: install g++")
    folder = tmp_path_factory.mktemp("kernels")

    @cache
    def library(names: tuple[str, ...], text: str) -> ctypes.CDLL:
        number = len(list(folder.iterdir()))
        code, made = folder / f"{number}.cpp", folder / f"{number}.so"
        starts = "".join(_start(name, text) for name in names)
        code.write_text(f'#include "{Path(__file__).with_name("emulate.h")}"\n{text}\n{starts}')
        subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", code, "-o", made], check=True)
        return ctypes.CDLL(str(made))

    return lambda name, defines, text: library(_beside(name, defines), text(defines))


KERNELS = {
    "CONVOLUTION": ("forward", "weight_gradient", "collect"), "INWARD": ("input_gradient",),
    "STEP": ("gather", "cross_entropy", "sgd", "next_step"), "DENSE": ("bias_relu", "bias_relu_back"),
}  # fmt: skip


def _beside(name: str, defines: tuple[str, ...]) -> tuple[str, ...]:
    """The kernels that are compiled together with one of this name."""
    parts = sorted(KERNELS.keys() & set(defines))
    tensor = any(line.startswith("TENSOR_") for line in defines)
    together = () if tensor else tuple(name for part in parts for name in KERNELS[part])
    return together if name in together else (name,)


def _start(name: str, text: str) -> str:
    parameters = re.search(rf"\b{name}\((.*?)\) {{", text, re.DOTALL)
    assert parameters is not None
    kinds = [p.strip().rpartition(" ")[0].replace("__restrict__", "") for p in parameters[1].split(",")]
    taken = ", ".join(f"*(({kind}*)args[{n}])" for n, kind in enumerate(kinds))
    head = f'extern "C" void start_{name}(const int* grid, int threads, void** args)'
    return f"{head} {{ run(grid, threads, [&] {{ {name}({taken}); }}); }}\n"


@pytest.fixture
def emulated(
    monkeypatch: pytest.MonkeyPatch, libraries: Callable[[str, tuple[str, ...], cuda.Source], ctypes.CDLL]
) -> None:
    """Kernels run on the CPU, as few blocks as there can be, those of the tensor cores too."""

    def compiled(
        name: str, defines: tuple[str, ...], device: int | None, shared: int, text: cuda.Source
    ) -> Callable[..., None]:
        start = getattr(libraries(name, defines, text), f"start_{name}")

        def kernel(
            *, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any], shared_mem: int
        ) -> None:
            assert shared_mem <= shared
            held = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a) for a in args]
            pointers = (ctypes.c_void_p * len(held))(*(ctypes.cast(ctypes.byref(h), ctypes.c_void_p) for h in held))
            start((ctypes.c_int * 3)(*grid), block[0], pointers)

        return kernel

    monkeypatch.setattr(cuda, "kernel_for", compiled)
    monkeypatch.setattr(cuda, "works_on", lambda device: True)
    monkeypatch.setattr(native, "BLOCKS", 1)
    monkeypatch.setattr(tensorcores, "BLOCKS", 1)
    monkeypatch.setattr(tensorcores, "available", lambda device: True)
