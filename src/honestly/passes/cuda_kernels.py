# pyright: basic
"""Launches the CUDA kernels of `kernels.cu` on torch tensors. Imported only where torch and a CUDA device are."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch

from honestly.passes.ranking import network
from honestly.result import Float

# One group holds up to 20 rows: their 210 products are what a thread's registers take. More rows go in groups of 10.
LARGEST_GROUP, GROUP = 20, 10
# Registers leave room for 256 threads on a processor: two blocks of 128, each with its ring in shared memory.
THREADS, RESIDENT = 128, 2
# Columns that one thread adds up in float32 before the sum goes on in float64.
MOST_STEPS = 512
COLUMNS_PER_BLOCK = 1024
TYPES = {torch.float32: "TYPE_FLOAT", torch.float16: "TYPE_HALF", torch.bfloat16: "TYPE_BFLOAT16"}


def gram(rows: torch.Tensor, middle: torch.Tensor | int | None) -> Float:
    """`C C^T` in float64 on the host, `C = rows - middle`, from one read of the rows; the middle may be `BETWEEN`."""
    K, n = rows.shape
    device = rows.device.index
    group = K if K <= LARGEST_GROUP else GROUP
    groups = -(-K // group)
    pairs = groups * (groups + 1) // 2
    steps = min(MOST_STEPS, -(-n // (THREADS * RESIDENT * _processors(device))))
    blocks = -(-n // (THREADS * steps))
    products = group * (group + 1) // 2 if groups == 1 else group * group
    partial = torch.empty((blocks, pairs, products), dtype=torch.float64, device=rows.device)
    kernel = _compiled("gram", rows.dtype, device, _gram_defines(group, groups == 1, _kind(middle)))
    with torch.cuda.device(device):
        arguments = [rows, middle if isinstance(middle, torch.Tensor) else rows, partial, K, n, rows.stride(0), steps]
        kernel(grid=(blocks, pairs, 1), block=(THREADS, 1, 1), args=arguments)
        summed = partial.sum(dim=0).cpu().numpy()
    return _unpacked(summed, K, group, groups)


def _kind(middle: torch.Tensor | int | None) -> int:
    """What MIDDLE means in `kernels.cu`."""
    return 0 if middle is None else 1 if isinstance(middle, torch.Tensor) else 2


def _unpacked(summed: Float, K: int, group: int, groups: int) -> Float:
    """The symmetric K x K matrix from the products of each pair of groups."""
    if groups == 1:
        return summed[0][_triangle(group)]
    G = np.zeros((groups * group, groups * group))
    pair = 0
    for left in range(groups):
        for right in range(left + 1):
            block = summed[pair].reshape(group, group)
            G[left * group : (left + 1) * group, right * group : (right + 1) * group] = block
            pair += 1
    return (np.tril(G) + np.tril(G, -1).T)[:K, :K]


@cache
def _triangle(size: int) -> Any:
    """(size, size) positions in the packed lower triangle."""
    i, j = np.indices((size, size))
    i, j = np.maximum(i, j), np.minimum(i, j)
    return i * (i + 1) // 2 + j


@cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def mix(rows: torch.Tensor, weights: Float) -> tuple[torch.Tensor, torch.Tensor]:
    """`weights @ rows` in float32, and the largest absolute value (infinite if one is NaN)."""
    K, n = rows.shape
    device = rows.device.index
    largest_last = np.zeros(K + 1, dtype=np.float32)
    largest_last[:K] = weights
    moved = torch.from_numpy(largest_last).to(rows.device, non_blocking=True)
    value = torch.empty(n, dtype=torch.float32, device=rows.device)
    kernel = _compiled("mix", rows.dtype, device, (f"CLIENTS {K}",))
    with torch.cuda.device(device):
        blocks = -(-n // COLUMNS_PER_BLOCK)
        kernel(grid=(blocks, 1, 1), block=(256, 1, 1), args=[rows, moved, value, n, rows.stride(0)])
    return value, moved[K]


def rank(rows: torch.Tensor, ranks: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows first..last of each sorted column in float32, and the largest absolute value of all (infinite for NaN)."""
    (K, n), (first, last) = rows.shape, ranks
    ranked = torch.empty((last - first, n), dtype=torch.float32, device=rows.device)
    largest = torch.zeros((), dtype=torch.int32, device=rows.device)
    kernel = _compiled("rank", rows.dtype, rows.device.index, _rank_defines(K, first, last))
    with torch.cuda.device(rows.device):
        kernel(grid=(-(-n // 256), 1, 1), block=(256, 1, 1), args=[rows, ranked, largest, n, rows.stride(0)])
    return ranked, largest.view(torch.float32)


@cache
def _gram_defines(group: int, single: bool, kind: int) -> tuple[str, ...]:
    return (f"ROWS {group}", f"THREADS {THREADS}", f"MIDDLE {kind}") + ("SINGLE",) * single


@cache
def _rank_defines(K: int, first: int, last: int) -> tuple[str, ...]:
    comparators = " ".join(f"SMALLER({low}, {high})" for low, high, _, _ in network(K, first, last))
    return (f"RANKED {K}", f"FIRST {first}", f"LAST {last}", f"COMPARATORS {comparators}")


@cache
def _compiled(name: str, dtype: torch.dtype, device: int, defines: tuple[str, ...]) -> Any:
    """The kernel for this element type and these shapes, compiled by NVRTC on its first use."""
    head = "".join(f"#define {line}\n" for line in (TYPES[dtype], *defines))
    source = files("honestly.passes").joinpath("kernels.cu").read_text(encoding="utf-8")
    with torch.cuda.device(device):
        return torch.cuda._compile_kernel(head + source, name)
