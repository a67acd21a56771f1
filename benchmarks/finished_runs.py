"""The finished runs of a long benchmark, one JSON line each: it continues where it was interrupted."""

import json
import os
import platform
from pathlib import Path
from typing import Any


def read_runs(file: Path) -> list[dict[str, Any]]:
    """The runs in a file, which need not exist yet."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def add_run(file: Path, run: dict[str, Any]) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps(run) + "\n")


def environment() -> str:
    """Machine, Python and PyTorch, for a page."""
    import torch

    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, PyTorch {torch.__version__}"
    )
