# pyright: basic
"""Our CUDA kernels of training: their source, compiled for each choice of sizes, and how they are started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from honestly.engine.passes.exclusive import WHOLE_DEVICE
from honestly.kernels.torch_private import can_compile, compile_kernel

STEP_DEFAULTS = (
    "STEP", "BATCH 1", "PIXELS 4", "HEIGHT 2", "WIDTH 2", "CHANNELS 1", "CLASSES 2",
    "LEARNING_RATE 0.0f", "MOMENTUM 0.0f", "WEIGHT_DECAY 0.0f",
)  # fmt: skip


def source(defines: Sequence[str]) -> str:
    """The text of the kernels that these macros select."""
    tensor = [f"{line.lower()}.cu" for line in defines if line.startswith("TENSOR_")]
    names = ("shapes.cu", "tensorcores.cu", *tensor) if tensor else ("shapes.cu", "kernels.cu")
    head = "".join(f"#define {line}\n" for line in defines)
    folder = files("honestly.kernels") / "lenet"
    return head + "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


Source = Callable[[Sequence[str]], str]


@cache
def kernel_for(
    name: str, defines: tuple[str, ...], device: int | None, shared: int, text: Source
) -> Callable[..., None]:
    """The kernel for these sizes, compiled by NVRTC on its first use; its blocks have ``shared`` bytes to share."""
    with WHOLE_DEVICE, torch.cuda.device(device):
        kernel = compile_kernel(text(defines), name)
        if shared:
            kernel.set_shared_memory_config(shared)
        return kernel


def launch(
    name: str,
    defines: Sequence[str],
    grid: tuple[int, ...],
    threads: int,
    args: list[Any],
    *,
    shared: int = 0,
    text: Source | None = None,
) -> None:
    """Run a kernel on the current stream of the tensors' device; ``text`` gives its source, if not this file's."""
    kernel = kernel_for(name, tuple(defines), args[0].device.index, shared, text or source)
    kernel(grid=(*grid, 1, 1)[:3], block=(threads, 1, 1), args=args, shared_mem=shared)


@cache
def works_on(device: torch.device) -> bool:
    """Whether this PyTorch can compile and start kernels on the device."""
    if device.type != "cuda" or not can_compile():
        return False
    t = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        launch("next_step", STEP_DEFAULTS, (1,), 1, [t])
    except (RuntimeError, OSError, AttributeError, TypeError):  # no NVRTC here, or another private interface
        return False
    return int(t) == 1
