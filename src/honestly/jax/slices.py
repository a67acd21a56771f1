"""Each device's slice of all updates, its part of the result, and the rule's decision on the host."""

# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from honestly.engine import Pipeline
from honestly.engine.geometry import known_layers
from honestly.jax.grams import gram_matrices
from honestly.rules.rule import ColumnRule, GramGeometry, TooFewClientsError
from honestly.sources import Layer


def exchange(leaves: Sequence[Any], K: int, axis_name: str) -> list[Any]:
    """For each leaf, (K, n): this device's slice of all updates, with one exchange per dtype."""
    cut = [jnp.pad(leaf.reshape(-1), (0, -leaf.size % K)).reshape(K, -1) for leaf in leaves]
    parts: list[Any] = [None] * len(cut)
    for dtype in dict.fromkeys(piece.dtype for piece in cut):
        those = [i for i, piece in enumerate(cut) if piece.dtype == dtype]
        rows = lax.all_to_all(jnp.concatenate([cut[i] for i in those], axis=1), axis_name, 0, 0, tiled=True)
        bounds = np.cumsum([cut[i].shape[1] for i in those])[:-1]
        for i, piece in zip(those, jnp.split(rows, bounds, axis=1), strict=True):
            parts[i] = piece
    return parts


def gather(own: Sequence[Any], leaves: Sequence[Any], axis_name: str) -> list[Any]:
    """The slices of all devices put together, in the shapes of the leaves."""
    whole = [lax.all_gather(row, axis_name, tiled=True) for row in own]
    return [x[: leaf.size].reshape(leaf.shape).astype(leaf.dtype) for x, leaf in zip(whole, leaves, strict=True)]


def own_slices(
    pipeline: Pipeline, rows: Sequence[Any], usable: Any, layers: Sequence[Layer], axis_name: str, from_zero: bool
) -> tuple[list[Any], dict[str, Any]]:
    """This device's slice of the result, and the info."""
    K = len(usable)
    unknown = jnp.full(K, jnp.nan)
    if isinstance(pipeline.rule, ColumnRule):
        return [_reduce(pipeline.rule, row, usable) for row in rows], {"weights": unknown, "honesty": unknown}
    grams = gram_matrices(rows, usable, layers, axis_name, from_zero=from_zero, with_zero="reference" in pipeline.needs)

    def decide(usable: Any, *grams: Any) -> Any:
        exact = _decide(pipeline, layers, from_zero, np.asarray(usable), [np.asarray(G, np.float64) for G in grams])
        rounded = exact.astype(np.float32)
        return np.stack([rounded, (exact - rounded).astype(np.float32)])

    # in two halves of 32 bits each: callbacks return 64 only where JAX was told so for all threads
    shape = jax.ShapeDtypeStruct((2, len(layers) + 2, K), jnp.float32)
    decision, rest = jax.pure_callback(decide, shape, usable, *grams, vmap_method="sequential")
    by_layer, weights, honesty = decision[:-2], decision[-2], decision[-1]
    of_leaf = {leaf: i for i, layer in enumerate(layers) for leaf, _, _ in layer.spans}
    own: list[Any] = []
    for i, row in enumerate(rows):
        of = of_leaf.get(i, 0)
        own.append(jnp.matmul(by_layer[of].astype(row.dtype) + rest[of].astype(row.dtype), row, precision="highest"))
    return own, {"weights": weights, "honesty": honesty}


def _decide(
    pipeline: Pipeline, layers: Sequence[Layer], from_zero: bool, usable: np.ndarray, grams: Sequence[np.ndarray]
) -> np.ndarray:
    """On the host: a row of weights for each layer, then the weights and the honesty of all."""
    K = len(usable)
    answer = np.full((len(layers) + 2, K), np.nan)
    clients = np.flatnonzero(usable)
    if 2 * len(clients) <= K or len(clients) < pipeline.minimum():
        return answer
    few = [G[:, clients][:, :, clients] for G in grams]
    few = [0.5 * (G + G.transpose(0, 2, 1)) for G in few]
    same = from_zero and np.array_equal(few[0], few[1])
    geometry = GramGeometry.of_layers(
        few[0],
        tuple(clients.tolist()),
        has_reference=from_zero,
        about_reference=None if same or len(few) == 1 else few[1],
        **known_layers(layers),
    )
    try:
        decision = pipeline.decide(geometry)
    except TooFewClientsError:  # a rule behind mixers: without the unusable devices there are too few for it
        if len(clients) == K:
            raise
        return answer
    answer[:] = 0.0
    rows, own = decision.by_layer, decision.matrix[0]
    answer[:-2, clients] = own if rows is None else rows
    answer[-2, clients] = (
        own / own.sum() if own.sum() > 0 else own
    )  # the rest of the weight, up to 1, belongs to the reference, 0
    answer[-1] = np.nan
    if decision.honesty is not None:
        answer[-1] = 0.0
        answer[-1, clients] = decision.honesty
    return answer


def _reduce(rule: ColumnRule, row: Any, usable: Any) -> Any:
    """The rule's reduction of each column over the usable devices: one branch for each number of them."""
    K = len(usable)
    ranked = jnp.sort(jnp.where(usable[:, None], row, jnp.inf), axis=0)
    fewest = max(K // 2 + 1, rule.minimum())

    def of(m: int) -> Any:
        first, last = rule.ranks(m)
        return lambda: rule.reduce(ranked[first:last], jnp).astype(row.dtype)

    def none() -> Any:
        return jnp.full_like(ranked[0], jnp.nan)

    count = usable.sum()
    branches = [none, *(of(m) for m in range(fewest, K + 1))]
    return lax.switch(jnp.where(count < fewest, 0, count - fewest + 1), branches)
