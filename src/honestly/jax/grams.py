"""The Gram matrices of the devices' updates by layer, added up over their slices."""

# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from honestly.sources import Layer

#: A layer's centre is far away if most squared distances from it are this many times those between devices.
FAR = 1e3


def gram_matrices(
    rows: Sequence[Any], usable: Any, layers: Sequence[Layer], axis_name: str, *, from_zero: bool, with_zero: bool
) -> list[Any]:
    """(L, K, K) the sum over all devices of this slice's products; and, if it is wanted, the same about 0.

    The first is about 0 if differences from a reference are averaged, else about the median of three usable devices. In
    layers where that is so far away that rounding hides how most devices differ (two of the three may lie), it is about
    the device that is nearest to most.
    """
    order = jnp.argsort(~usable, stable=True)
    count = jnp.maximum(usable.sum(), 1)

    def median(row: Any, i: int) -> Any:
        a, b, c = (row[order[i]] for i in (0, count // 2, count - 1))
        return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))

    def about(centre: Any) -> Any:
        return lax.psum(_products(rows, usable, layers, centre), axis_name)

    def again() -> Any:
        nearest = jnp.nanargmin(_typical(lax.psum(_distances(rows, layers), axis_name), usable), axis=1)
        return about(lambda row, i: row[nearest[i]])

    zero = [about(lambda row, i: 0)] if from_zero or with_zero else []
    G = zero[0] if from_zero else about(median)
    norms = jnp.diagonal(G, axis1=1, axis2=2)
    apart = _typical(norms[:, :, None] + norms[:, None, :] - 2 * G, usable).min(axis=1, where=usable, initial=jnp.inf)
    far = jnp.nanmedian(jnp.where(usable, norms, jnp.nan), axis=1) > FAR * apart
    return [jnp.where(far[:, None, None], lax.cond(far.any(), again, lambda: G), G), *zero]


def _products(rows: Sequence[Any], usable: Any, layers: Sequence[Layer], centre: Any) -> Any:
    """(L, K, K) `C C^T` of the rows less `centre(row, layer)`."""
    totals = []
    for i, layer in enumerate(layers):
        total = 0.0
        for leaf, _, _ in layer.spans:
            row = jnp.where(usable[:, None], rows[leaf] - centre(rows[leaf], i), 0)
            total = total + jnp.matmul(row, row.T, precision="highest")
        totals.append(total)
    return jnp.stack(totals)


def _distances(rows: Sequence[Any], layers: Sequence[Layer]) -> Any:
    """(L, K, K) squared distances of the rows, each from its differences: slower than products, without a centre."""
    totals = []
    for layer in layers:
        parts = [
            lax.map(lambda one, row=rows[leaf]: ((row - one) ** 2).sum(axis=1), rows[leaf])
            for leaf, _, _ in layer.spans
        ]
        totals.append(sum(parts[1:], parts[0]))
    return jnp.stack(totals)


def _typical(squared: Any, usable: Any) -> Any:
    """(L, K) the median of each device's squared distances to the usable ones; NaN for one that is not usable."""
    both = usable[:, None] & usable[None, :]
    return jnp.nanmedian(jnp.where(both, squared, jnp.nan), axis=2)
