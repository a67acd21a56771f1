# pyright: basic, reportMissingImports=false
"""The two Triton kernels. Imported only where Triton and a CUDA device are."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from honestly.result import Float

# Columns per tile, and tiles that are added in float32 before the sum is moved to float64.
TILE, RUN = 128, 16
MIX_TILE = 1024


@triton.jit
def _gram_kernel(
    x, middle, partial, K, n, stride, per_program,
    HAS_MIDDLE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first = program.to(tl.int64) * per_program
    last = tl.minimum(first + per_program, n)
    k = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, ROWS), dtype=tl.float64)
    for start in range(first, last, TILE * RUN):
        part = tl.zeros((ROWS, ROWS), dtype=tl.float32)
        for step in tl.static_range(RUN):
            column = start + step * TILE + tl.arange(0, TILE)
            inside = column < last
            mask = (k[:, None] < K) & inside[None, :]
            tile = tl.load(x + k[:, None].to(tl.int64) * stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
            if HAS_MIDDLE:
                centre = tl.load(middle + column, mask=inside, other=0.0).to(tl.float32)
                tile = tl.where(mask, tile - centre[None, :], 0.0)
            part = tl.dot(tile, tl.trans(tile), part, input_precision="tf32x3")
        total += part.to(tl.float64)
    out = partial + program.to(tl.int64) * ROWS * ROWS
    tl.store(out + k[:, None] * ROWS + k[None, :], total)


@triton.jit
def _mix_kernel(x, weights, out, largest, n, stride, K: tl.constexpr, TILE: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    column = program * TILE + tl.arange(0, TILE)
    inside = column < n
    value = tl.zeros((TILE,), dtype=tl.float32)
    for k in tl.static_range(K):
        value += tl.load(weights + k) * tl.load(x + k * stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + column, value, mask=inside)
    # NaN must not be lost in the maximum: it becomes infinity.
    size = tl.where(value == value, tl.abs(value), float("inf"))
    tl.store(largest + program, tl.max(size, axis=0))


def gram(rows: torch.Tensor, middle: torch.Tensor | None) -> torch.Tensor:
    """`C C^T` in float64, `C = rows - middle`: three TF32 products (float32 accuracy), long sums in float64."""
    K, n = rows.shape
    padded = max(16, triton.next_power_of_2(K))
    programs = 4 * torch.cuda.get_device_properties(rows.device).multi_processor_count
    per_program = triton.cdiv(triton.cdiv(n, programs), TILE * RUN) * TILE * RUN
    programs = triton.cdiv(n, per_program)
    partial = torch.empty((programs, padded, padded), dtype=torch.float64, device=rows.device)
    with torch.cuda.device(rows.device):
        _gram_kernel[(programs,)](
            rows, rows if middle is None else middle, partial, K, n, rows.stride(0), per_program,
            HAS_MIDDLE=middle is not None, ROWS=padded, TILE=TILE, RUN=RUN, num_warps=4, num_stages=3,
        )  # fmt: skip
    return partial.sum(dim=0)[:K, :K]


def mix(rows: torch.Tensor, weights: Float) -> tuple[torch.Tensor, torch.Tensor]:
    """`weights @ rows` in float32, and the largest absolute value (infinite if one is NaN)."""
    K, n = rows.shape
    moved = torch.from_numpy(weights.astype(np.float32)).to(rows.device)
    value = torch.empty(n, dtype=torch.float32, device=rows.device)
    programs = triton.cdiv(n, MIX_TILE)
    largest = torch.empty(programs, dtype=torch.float32, device=rows.device)
    with torch.cuda.device(rows.device):
        _mix_kernel[(programs,)](rows, moved, value, largest, n, rows.stride(0), K=K, TILE=MIX_TILE, num_warps=4)
    return value, largest.max()
