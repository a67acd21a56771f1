# pyright: basic
"""Every private interface of PyTorch that the package uses, in one place. Import it only where torch is.

- `torch.cuda._compile_kernel` (since 2.9): kernels compiled by NVRTC. Without it there are no CUDA kernels of our own:
  plain PyTorch, the same numbers, slower.
- `torch._C._cuda_getDevice`, `torch._C._cuda_getCurrentRawStream`, `torch.cuda._utils._get_gpu_runtime_library` and
  `torch.cuda._utils._check_cuda`: launches that take microseconds, for aggregation. Without them the same.
- `torch._foreach_copy_`: gradients into one flat vector with one launch. Without it a loop of copies.
- `torch.autograd.Variable._execution_engine.queue_callback`, which FSDP uses, too: errors that `ddp_hook` raises when
  DDP has finished with the gradients. Without it they are raised at once, and DDP refuses all later steps.
- `torch.distributed.ProcessGroup._get_backend` and the `_timeout` of its options: a group's own timeout. Without it
  PyTorch's default.

`tests/kernels/test_torch_private.py` fails with the name of whatever has gone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

COMPILER = "torch.cuda._compile_kernel"
LAUNCHER = (
    "torch._C._cuda_getDevice",
    "torch._C._cuda_getCurrentRawStream",
    "torch.cuda._utils._get_gpu_runtime_library",
    "torch.cuda._utils._check_cuda",
)
AFTER_BACKWARD = "torch.autograd.Variable._execution_engine.queue_callback"


def _find(path: str) -> Any:
    thing: Any = torch
    for part in path.split(".")[1:]:
        thing = getattr(thing, part, None)
    return thing


def missing() -> list[str]:
    """What this PyTorch lacks of all that is needed to compile kernels and to launch them by the driver."""
    return [path for path in (COMPILER, *LAUNCHER) if _find(path) is None]


def can_compile() -> bool:
    """Whether this PyTorch compiles kernels: not before 2.9."""
    return _find(COMPILER) is not None


def can_launch() -> bool:
    """Whether it also has what a fast launch needs: not for AMD."""
    return torch.version.hip is None and not missing()


def compile_kernel(source: str, name: str) -> Any:
    """The kernel of that name, compiled by NVRTC for the current device."""
    return torch.cuda._compile_kernel(source, name)


# Bound once: these are called for every launch. A build without CUDA has none of them.
current_device: Any = _find(LAUNCHER[0])
current_stream: Any = _find(LAUNCHER[1])


def driver() -> Any:
    """CUDA's driver, with `cuLaunchKernel`."""
    return torch.cuda._utils._get_gpu_runtime_library()


def check(error: int) -> None:
    """Raise what the driver's error number means."""
    torch.cuda._utils._check_cuda(error)


def copy_each(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, on a GPU with one launch where PyTorch has it."""
    together: Any = _find("torch._foreach_copy_")
    if together is not None:
        together(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def call_after_backward(function: Callable[[], None]) -> None:
    """Call the function at the end of the backward pass under way, after what is to be called there already."""
    queue: Any = _find(AFTER_BACKWARD)
    if queue is None:
        function()
    else:
        queue(function)


def timeout_of(group: Any) -> timedelta | None:
    """The timeout of the collectives of a group of processes; None if its backend does not tell."""
    kind = str(torch.distributed.get_backend_config(group)).partition(":")[0]
    backend: Any = getattr(group, "_get_backend", lambda device: None)(torch.device(kind))
    return getattr(getattr(backend, "options", None), "_timeout", None)
