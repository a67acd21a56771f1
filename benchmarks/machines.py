"""Describe the machine that a benchmark runs on, and put it under load."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.processor() or platform.machine()


def kernels() -> str:
    """Which loops run on this CPU, our compiled ones or NumPy's, and which BLAS."""
    from honestly.kernels.rows import PROGRAM

    maps = Path("/proc/self/maps")
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "openblas" in line} if maps.exists() else ()
    blas = "another BLAS"
    for path in paths:
        for name in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename"):
            with contextlib.suppress(AttributeError, OSError):
                function = ctypes.CDLL(path)[name]
                function.restype = ctypes.c_char_p
                blas = f"OpenBLAS {function().decode()}"
    library = PROGRAM.library()
    if library is None:
        return f"NumPy {np.__version__}, {blas}"
    width = {16: "128-bit vectors", 32: "AVX2", 64: "AVX-512"}[library.honestly_vector_bytes()]
    return f"compiled for {width}"


def other_data(X: np.ndarray) -> dict[str, Callable[[], Any]]:
    """The same updates in other forms: narrower types, and state dicts with the 62 tensors of a ResNet-18."""
    results: dict[str, Callable[[], Any]] = {"float16": lambda: X.astype(np.float16)}
    with contextlib.suppress(ImportError):
        import torch

        results["bfloat16"] = lambda: torch.from_numpy(X).to(torch.bfloat16)
    if X.shape[1] == sum(RESNET18):
        cuts = np.cumsum(RESNET18)[:-1]
        results["state dicts"] = lambda: [
            {f"tensor{i}.weight": part.copy() for i, part in enumerate(np.split(row, cuts))} for row in X
        ]
    return results


def resnet18(classes: int = 10) -> list[int]:
    """Sizes of the tensors of a ResNet-18 for small images."""
    sizes, inner = [3 * 64 * 9, 64, 64], 64
    for width in (64, 64, 128, 128, 256, 256, 512, 512):
        sizes += [inner * width * 9, width, width, width * width * 9, width, width]
        if inner != width:
            sizes += [inner * width, width, width]
        inner = width
    return [*sizes, inner * classes, classes]


RESNET18 = resnet18()


@contextlib.contextmanager
def busy(processes: int) -> Generator[None]:
    """Run this many processes that keep one core busy each."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        time.sleep(1.0)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
