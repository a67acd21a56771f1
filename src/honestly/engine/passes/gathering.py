"""What device passes collect block by block: small products for the host, and the pieces of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly import arrays
from honestly.result import Float

# Values of products that wait on the device.
MOST_WAITING = 1 << 22


class WaitingProducts:
    """Small products that stay on the device until many can be copied at once; `sums[layer]` is where they go."""

    def __init__(self, xp: Any, sums: Float) -> None:
        self._xp, self._sums = xp, sums
        self._layers: list[int] = []
        self._held: list[Any] = []

    def put(self, layers: Sequence[int], products: Any) -> None:
        """Keep (n, ...) products of these layers."""
        if self._held and self._held[0].dtype != products.dtype:
            self.finish()
        self._layers += layers
        self._held.append(products)
        if len(self._layers) * int(self._sums[0].size) > MOST_WAITING:
            self.finish()

    def finish(self) -> None:
        """Copy what is held to the host and add it up there, in float64."""
        if not self._held:
            return
        products = arrays.to_host(self._held[0] if len(self._held) == 1 else self._xp.concat(self._held, axis=0))
        with np.errstate(over="ignore", invalid="ignore"):
            for layer, product in zip(self._layers, products.astype(np.float64), strict=True):
                self._sums[layer] += product
        self._layers, self._held = [], []


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
