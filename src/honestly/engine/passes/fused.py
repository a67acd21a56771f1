"""Fused CUDA kernels for torch tensors; every caller has a fallback without them.

A skinny product such as `X @ X.T` with 20 rows runs ten times slower through the vendor's library than memory allows,
and a matrix unit rounds to TF32. Here each value is read once, centred in registers and multiplied at once in float32;
nothing of size d is written. (A Triton kernel was tried first: padding 20 rows to 32 and three TF32 products made it
several times slower than these.)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import array_api_compat as aac

from honestly.engine.passes.networks import SortingNetwork, Summary
from honestly.engine.passes.parts import Part
from honestly.result import Float

# The products of more rows than this do not fit a thread's registers; the vendor's product serves them well.
MOST_ROWS = 20
# More rows than this do not fit a thread's registers when they are sorted or added up.
MOST_RANKED = 64
# Fewer columns than this are not worth a launch of their own.
FEWEST_COLUMNS = 4096
# The kernels count columns and strides in 32 bits.
LARGEST_INDEX = 2**31 - 2**12


def gram(rows: Any, middle: Any, parts: Sequence[Part]) -> Any | None:
    """`C C^T` of each part of torch CUDA rows less `middle` (a row, None or `BETWEEN`), in float64 on the host.

    One launch, however many parts there are. None if the plain way must do it.
    """
    pending = start_gram(rows, middle, parts)
    return None if pending is None else pending.finish()


def start_gram(rows: Any, middle: Any, parts: Sequence[Part]) -> Any | None:
    """The same, started: what it returns has a `finish` that waits for the products."""
    if getattr(middle, "dtype", rows.dtype) != rows.dtype:
        return None
    return _attempt("PendingGram", rows, middle, parts)


def mix(rows: Any, weights: Float, parts: Sequence[Part], flag: Any) -> Any | None:
    """`weights[part.layer] @ rows` of each part in one read of memory; None if the plain way must do it."""
    if len(parts) == 1:
        return _attempt("mix", rows, weights[parts[0].layer], flag)
    return _attempt("mix_parts", rows, weights, parts, flag)


def mixing(rows: Any, flag: Any) -> Any | None:
    """`mix` of these rows, made ready before the weights are known: what it returns takes them."""
    return _attempt("Mixing", rows, flag)


def rank(rows: Any, chosen: Sequence[int], network: SortingNetwork, summary: Summary | None, flag: Any) -> Any | None:
    """The wanted rows of the network for the chosen ones, or a summary of them; None if the plain way must do it."""
    if not 2 <= len(chosen) <= MOST_RANKED:
        return None
    return _attempt("rank", rows, chosen, network, summary, flag)


def flag(like: Any) -> Any | None:
    """What `mix` and `rank` raise if a value is not finite or absurdly large; None where they are not used."""
    return _kernels().Flag(like.device.index) if available(like) else None


# Kernels that this machine's compiler or card refused once; they are not tried again.
_refused: set[str] = set()


def _attempt(name: str, rows: Any, *others: Any) -> Any:
    if name in _refused or not _fits(name, rows):
        return None
    try:
        return getattr(_kernels(), name)(rows, *others)
    except Exception as error:  # no compiler, an old card, a full device: the plain way still works
        _refused.add(name)
        warnings.warn(f"the fused kernel {name} is not used on this device: {error}", RuntimeWarning, stacklevel=2)
        return None


def available(like: Any) -> bool:
    """Whether the kernels can be used on arrays such as this one, shapes apart."""
    return aac.is_torch_array(like) and like.is_cuda and not _refused and _kernels() is not None


def _fits(name: str, rows: Any) -> bool:
    return (
        aac.is_torch_array(rows)
        and rows.is_cuda
        and _kernels() is not None
        and rows.dtype in _kernels().TYPES
        and 2 <= rows.shape[0] <= {"PendingGram": MOST_ROWS, "rank": LARGEST_INDEX}.get(name, MOST_RANKED)
        and FEWEST_COLUMNS <= rows.shape[1] < LARGEST_INDEX
        and rows.stride(1) == 1
        and rows.stride(0) < LARGEST_INDEX
    )


@cache
def _kernels() -> Any:
    """The module with the kernels, or None where torch cannot compile them (before 2.9, or on AMD)."""
    from honestly.kernels.torch_private import can_launch

    if not can_launch():
        return None
    from honestly.engine.passes import cuda_kernels

    return cuda_kernels
