"""Updates of clients for tests of `hn.Buffer`."""

from __future__ import annotations

from typing import Any

import numpy as np

import honestly as hn


def update(k: int, d: int = 40, *, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(k)
    return {"w": (scale * (1 + 0.3 * rng.normal(size=(d // 4, 4)))).astype("f4"), "b": np.full(3, scale, "f4")}


def fill(buffer: hn.Buffer, clients: Any, **settings: Any) -> hn.Aggregate | None:
    out = None
    for k in clients:
        out = buffer.add(f"site-{k}", update(k), version=buffer.version, **settings)
    return out
