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
LARGEST_GROUP, GROUP, THREADS = 20, 10, 256
# Columns that one thread adds up in float32 before the sum goes on in float64.
MOST_STEPS = 512
COLUMNS_PER_BLOCK = 1024
TYPES = {torch.float32: "TYPE_FLOAT", torch.float16: "TYPE_HALF", torch.bfloat16: "TYPE_BFLOAT16"}


def gram(rows: torch.Tensor, middle: torch.Tensor | None) -> Float:
    """`C C^T` in float64 on the host, `C = rows - middle`, from one read of the rows."""
    K, n = rows.shape
    group = K if K <= LARGEST_GROUP else GROUP
    groups = -(-K // group)
    pairs = groups * (groups + 1) // 2
    steps = min(MOST_STEPS, -(-n // (THREADS * _processors(rows.device.index))))
    blocks = -(-n // (THREADS * steps))
    products = group * (group + 1) // 2 if groups == 1 else group * group
    partial = torch.empty((blocks, pairs, products), dtype=torch.float64, device=rows.device)
    kernel = _compiled("gram", rows.dtype, rows.device.index, _gram_defines(group, groups == 1))
    with torch.cuda.device(rows.device):
        centre = rows if middle is None else middle
        arguments = [rows, centre, partial, K, n, rows.stride(0), steps, int(middle is not None)]
        kernel(grid=(blocks, pairs, 1), block=(THREADS, 1, 1), args=arguments)
        summed = partial.sum(dim=0).cpu().numpy()
    return _unpacked(summed, K, group, groups)


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
    moved = torch.from_numpy(weights.astype(np.float32)).to(rows.device, non_blocking=True)
    value = torch.empty(n, dtype=torch.float32, device=rows.device)
    largest = torch.zeros((), dtype=torch.int32, device=rows.device)
    kernel = _compiled("mix", rows.dtype, rows.device.index, ())
    with torch.cuda.device(rows.device):
        blocks = -(-n // COLUMNS_PER_BLOCK)
        kernel(grid=(blocks, 1, 1), block=(256, 1, 1), args=[rows, moved, value, largest, K, n, rows.stride(0)])
    return value, largest.view(torch.float32)


def rank(rows: torch.Tensor, ranks: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows first..last of each sorted column in float32, and the largest absolute value of all (infinite for NaN)."""
    (K, n), (first, last) = rows.shape, ranks
    ranked = torch.empty((last - first, n), dtype=torch.float32, device=rows.device)
    largest = torch.zeros((), dtype=torch.int32, device=rows.device)
    kernel = _compiled("rank", rows.dtype, rows.device.index, _rank_defines(K, first, last))
    with torch.cuda.device(rows.device):
        kernel(grid=(-(-n // 256), 1, 1), block=(256, 1, 1), args=[rows, ranked, largest, n, rows.stride(0)])
    return ranked, largest.view(torch.float32)


def _gram_defines(group: int, single: bool) -> tuple[str, ...]:
    return (f"ROWS {group}", f"THREADS {THREADS}") + ("SINGLE",) * single


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
