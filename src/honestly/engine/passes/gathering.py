"""What device passes collect block by block: small products for the host, narrow parts, the pieces of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_compat as aac
import numpy as np

from honestly import arrays
from honestly.engine.passes.parts import Part
from honestly.result import Float

# Values of products that wait on the device.
MOST_WAITING = 1 << 22


class WaitingProducts:
    """Small products that stay on the device until many can be copied at once; `sums[layer]` is where they go."""

    def __init__(self, xp: Any, sums: Float) -> None:
        self._xp, self._sums = xp, sums
        self._layers: list[int] = []
        self._waiting: list[Any] = []

    def put(self, layers: Sequence[int], products: Any) -> None:
        """Keep (n, ...) products of these layers."""
        if self._waiting and self._waiting[0].dtype != products.dtype:
            self.finish()
        self._layers += layers
        self._waiting.append(products)
        if len(self._layers) * int(self._sums[0].size) > MOST_WAITING:
            self.finish()

    def finish(self) -> None:
        """Copy what waits to the host and add it up there, in float64."""
        if not self._waiting:
            return
        products = arrays.to_host(
            self._waiting[0] if len(self._waiting) == 1 else self._xp.concat(self._waiting, axis=0)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            for layer, product in zip(self._layers, products.astype(np.float64), strict=True):
                self._sums[layer] += product
        self._layers, self._waiting = [], []


class LeafJoin:
    """The pieces of each leaf, which come in order, as one flat device array."""

    def __init__(self, xp: Any, like: Any, leaves: int) -> None:
        self._xp, self._like = xp, like
        self._parts: list[list[Any]] = [[] for _ in range(leaves)]

    def put(self, leaf: int, start: int, stop: int, values: Any) -> None:
        """Keep a piece."""
        self._parts[leaf].append(values)

    def finish(self) -> list[Any]:
        """One array per leaf; of a leaf without values, an empty one."""
        return [p[0] if len(p) == 1 else self._xp.concat(p) if p else self._like[0, :0] for p in self._parts]


def pad_parts(xp: Any, rows: Any, parts: Sequence[Part]) -> Any:
    """(parts, k, w) the columns of each part, and zeros behind them."""
    width = max(part.stop - part.start for part in parts)
    at = np.full((len(parts), width), rows.shape[1])
    for i, part in enumerate(parts):
        at[i, : part.stop - part.start] = np.arange(part.start, part.stop)
    first, last = parts[0].start, parts[-1].stop
    at = np.where(at == rows.shape[1], last - first, at - first)
    zero = xp.zeros((rows.shape[0], 1), dtype=rows.dtype, device=aac.device(rows))
    columns = xp.concat([rows[:, first:last], zero], axis=1)
    chosen = xp.take(columns, xp.asarray(at.ravel(), device=aac.device(rows)), axis=1)
    return xp.permute_dims(xp.reshape(chosen, (rows.shape[0], len(parts), width)), (1, 0, 2))
