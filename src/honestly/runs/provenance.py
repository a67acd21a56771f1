"""The provenance of a run: versions, commit and device."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from honestly._version import __version__


def provenance(device: str, seed: int, **more: Any) -> dict[str, Any]:
    """The provenance of a run as plain values."""
    import numpy as np
    import torch

    return {
        "version": __version__,
        "commit": commit(),
        "device": device_name(device),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "seed": seed,
        **more,
    }


def device_name(device: str) -> str:
    """The device in words, such as `cuda (NVIDIA H200)` or `cpu (x86_64)`."""
    import torch

    kind = torch.device(device).type
    if kind == "cuda":
        return f"cuda ({torch.cuda.get_device_name(torch.device(device))})"
    return f"{kind} ({_processor()})"


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine() or "unknown"


@cache
def commit() -> str | None:
    """The commit of the source tree that the package runs from; None for an installed package.

    A `+` means that files of the package differ from that commit.
    """
    here = Path(__file__).resolve().parents[1]
    tracked = _git(here, "ls-files", "--error-unmatch", "__init__.py")
    if tracked is None:  # no git, no repository, or the repository of another project
        return None
    head = _git(here, "rev-parse", "HEAD")
    return head if head is None or not _git(here, "status", "--porcelain", "--", ".") else f"{head}+"


def _git(folder: Path, *words: str) -> str | None:
    try:
        process = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
