"""What ranks do in the tests of `honestly.torch`; a process imports it by name."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

import honestly as hn


def updates(K: int, sizes: tuple[int, ...], liars: tuple[int, ...] = (), seed: int = 0) -> list[list[np.ndarray]]:
    """K updates of several tensors around a common direction; liars send -4 times theirs."""
    rng = np.random.default_rng(seed)
    common = [0.5 * rng.normal(size=size) for size in sizes]
    made = [[c + rng.normal(size=c.shape) for c in common] for _ in range(K)]
    for k in liars:
        made[k] = [-4 * x for x in made[k]]
    return made


def tensors(values: list[np.ndarray], dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(x)).to(getattr(torch, dtype)) for x in values]


def plain(out: Any) -> dict[str, Any]:
    """A result as NumPy and text, to send home."""
    value = out.value if isinstance(out.value, list | tuple) else [out.value]
    return {
        "value": [x.double().numpy() for x in value],
        "dtype": [str(x.dtype) for x in value],
        "weights": out.weights,
        "honesty": out.honesty,
        "reasons": dict(out.reasons),
        "excluded": out.excluded,
        "clients": out.clients,
        "status": str(out.status),
        "hash": hashlib.sha256(b"".join(x.contiguous().view(torch.uint8).numpy().tobytes() for x in value)).hexdigest(),
    }


def reduce(rank: int, K: int, given: list[list[np.ndarray]], dtype: str = "float32", **options: Any) -> dict[str, Any]:
    from honestly.torch import robust_all_reduce

    return plain(robust_all_reduce(tensors(given[rank], dtype), **options))


def reduce_many(rank: int, K: int, cases: list[tuple[list[list[np.ndarray]], str, dict[str, Any]]]) -> list[Any]:
    return [reduce(rank, K, given, dtype, **options) for given, dtype, options in cases]


__all__ = ["hn"]
