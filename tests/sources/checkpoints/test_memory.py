"""Memory does not grow with the files, measured as the peak of a separate process."""

from __future__ import annotations

import gc
import json
import os
import struct
import subprocess
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from honestly.sources import open_source

LIMIT = 300  # MB, the documented limit

SCRIPT = """
import sys
import honestly as hn
found = hn.aggregate(sys.argv[3:], sys.argv[1], out=sys.argv[2])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(found.excluded), int(peak.split()[1]) // 1024, "torch" in sys.modules)
"""


def measure(rule: str, out: Path, files: list[Path]) -> tuple[int, int, bool]:
    command = [sys.executable, "-c", SCRIPT, rule, str(out), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    excluded, peak, torch = done.stdout.split()
    return int(excluded), int(peak), torch == "True"


def sparse(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> Path:
    """A file of zeros that takes no space on the disk."""
    header, at = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + at)
    return path


@pytest.mark.parametrize("rule", ["bayesian", pytest.param("median", marks=pytest.mark.slow)])
def test_twenty_clients_far_larger_than_the_limit(tmp_path: Path, rule: str) -> None:
    million = 1_000_000
    layout = {f"layer.{i}": ("F32", [3, million], 12 * million) for i in range(2)}
    files = [sparse(tmp_path / f"{k}.safetensors", layout) for k in range(20)]
    assert sum(path.stat().st_size for path in files) > 1.5 * LIMIT * million
    excluded, peak, torch = measure(rule, tmp_path / "out.safetensors", files)
    assert excluded == 0
    assert peak < LIMIT / 2
    assert not torch  # plain files need no torch


def test_a_further_client_costs_a_few_bytes_a_tensor(tmp_path: Path) -> None:
    """A model of a hundred thousand tensors from twenty clients took as much memory for their descriptions alone."""
    few, many, tensors = 3, 11, 2000
    layout = {f"model.layers.{i}.experts.weight": ("F32", [4, 2], 32) for i in range(tensors)}
    files = [sparse(tmp_path / f"{k}.safetensors", layout) for k in range(many)]
    sizes: list[int] = []
    for K in (few, few, many):  # the first time some modules are loaded
        tracemalloc.start()
        with closing(open_source(files[:K])):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert (sizes[2] - sizes[1]) / (many - few) < 60 * tensors


@pytest.mark.slow
def test_headers_of_strangers_are_not_kept(tmp_path: Path) -> None:
    """Three clients of 14 have headers of the maximum length, which are read one by one."""
    good = [sparse(tmp_path / f"{k}.safetensors", {"w": ("F32", [10], 40)}) for k in range(11)]
    bomb = sparse(tmp_path / "bomb.safetensors", {f"{i:x}": ("F32", [0], 0) for i in range(110_000)})
    assert 7_000_000 < bomb.stat().st_size < 8_000_000
    excluded, peak, _ = measure("mean", tmp_path / "out.safetensors", [*good, *[bomb] * 3])
    assert excluded == 3
    assert peak < LIMIT


def test_a_shape_as_long_as_a_header(tmp_path: Path) -> None:
    good = [sparse(tmp_path / f"{k}.safetensors", {"w": ("F32", [10], 40)}) for k in range(3)]
    bomb = sparse(tmp_path / "bomb.safetensors", {"w": ("F32", [0] * 2_000_000, 0)})
    excluded, peak, _ = measure("mean", tmp_path / "out.safetensors", [*good, bomb])
    assert excluded == 1
    assert peak < LIMIT
