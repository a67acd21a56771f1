"""Fused kernels for NVIDIA GPUs through Triton, where it is installed; every caller has a plain way beside them.

A skinny product such as `X @ X.T` with 20 rows runs several times slower through the vendor's library than memory
allows. Here a tile of columns is read once, centred in registers and multiplied at once; nothing of size d is written.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import array_api_compat as aac

from honestly.result import Float

# More rows than this do not fit a program's registers; the vendor's product is efficient for them.
MOST_ROWS = 64


def gram(rows: Any, middle: Any) -> Any | None:
    """`C C^T` of torch CUDA rows less `middle` in one read of memory, as float64; None if the plain way must do it."""
    if not _fits(rows):
        return None
    return _kernels().gram(rows, middle)


def mix(rows: Any, weights: Float) -> tuple[Any, Any] | None:
    """`weights @ rows` and its largest absolute value in one read of memory; None if the plain way must do it."""
    if not _fits(rows):
        return None
    return _kernels().mix(rows, weights)


def _fits(rows: Any) -> bool:
    return (
        aac.is_torch_array(rows)
        and rows.is_cuda
        and str(rows.dtype) in ("torch.float32", "torch.float16", "torch.bfloat16")
        and 2 <= rows.shape[0] <= MOST_ROWS
        and rows.shape[1] >= 4096
        and rows.stride(1) == 1
        and _kernels() is not None
    )


@cache
def _kernels() -> Any:
    """The module with the kernels, or None where Triton is not installed."""
    try:
        import triton  # pyright: ignore[reportMissingImports, reportUnusedImport]  # noqa: F401
    except ImportError:
        return None
    from honestly.passes import triton_kernels

    return triton_kernels
