"""A robust mean over a mesh axis in JAX: `robust_mean` instead of `jax.lax.pmean` (extra `[jax]`).

Inside `jax.shard_map`, each device along the axis is a client. The devices exchange slices (`all_to_all`), add up their
Gram matrices (`psum`), run the rule on the host (`jax.pure_callback`: the package's own rules, in float64), average
their slice and gather the result.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

if find_spec("jax") is None:
    raise ModuleNotFoundError("honestly.jax needs JAX: pip install 'honestly[jax]'", name="jax")

import jax
import jax.numpy as jnp
from jax import lax

from honestly.arrays import COMPUTE, LARGEST, ArraySpec
from honestly.engine import Pipeline
from honestly.engine.geometry import known_layers
from honestly.rules.mean import Mean
from honestly.rules.rule import ColumnRule, GramGeometry, Mixer, Rule, TooFewClientsError
from honestly.sources import Layer, Leaf
from honestly.sources.grouping import Buffers, layers_of

#: Needs of rules that cannot be met here.
NOT_HERE = frozenset({"signs", "updates", "buffers", "root", "sizes", "trusted client"})

#: A layer's centre is far away if most squared distances from it are this many times those between devices.
FAR = 1e3


def robust_mean(
    x: Any,
    axis_name: str,
    rule: Rule | str = "bayesian",
    pre: Sequence[Mixer | str] | Mixer | str = (),
    *,
    reference: float | None = None,
    with_info: bool = False,
) -> Any:
    """The robust mean of `x` over the devices of a mesh axis; call it where you would call `jax.lax.pmean`.

    A device whose values are NaN, infinite or absurdly large is excluded. If half of the devices or more are unusable,
    or too few are left for the rule, the result is NaN, as it would be with `pmean`.

    Use `jax.shard_map(..., check_vma=False)` where parameters are replicated. Otherwise JAX itself adds up their
    gradients over the devices, before this function sees them (which is an error here), and it does not know that the
    result is replicated.

    Args:
        x: this device's update: an array or a pytree of float arrays. Each leaf is a layer.
        axis_name: the axis of the mesh over which to average.
        rule: a rule or its name: any rule that is a weighted mean, median, trimmed mean and meamed.
        pre: mixers applied before a rule that is a weighted mean.
        reference: 0 for gradients and other differences, so rules can tell a device that opposes the others.
        with_info: also return a dict of "weights" (K,) (NaN for coordinate-wise rules), "honesty" (K,) (NaN unless the
            rule infers it) and "usable" (K,).

    Returns:
        The mean, the same on every device, in the structure and dtypes of `x`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import AxisType, PartitionSpec as P
        >>> mesh = jax.make_mesh((1,), ("clients",), axis_types=(AxisType.Auto,))
        >>> each = P("clients")
        >>> step = jax.shard_map(lambda x: robust_mean(x, "clients"), mesh=mesh, in_specs=each, out_specs=each)
        >>> step(jnp.ones((1, 3))).tolist()
        [[1.0, 1.0, 1.0]]
    """
    pipeline = Pipeline.of(rule, pre)
    K = int(lax.axis_size(axis_name))
    _check(pipeline, K, reference)
    flat, tree = jax.tree.flatten(x)
    leaves = [jnp.asarray(leaf) for leaf in flat]
    names = ["".join(map(str, path)) for path, _ in jax.tree_util.tree_flatten_with_path(x)[0]]
    _check_varying(names, leaves, axis_name)
    specs = tuple(Leaf(name, _spec(name, leaf)) for name, leaf in zip(names, leaves, strict=True))
    result = [lax.stop_gradient(leaf) for leaf in leaves]
    filled = [i for i, leaf in enumerate(leaves) if leaf.size]  # collectives take no empty arrays
    if not filled:
        raise ValueError("x has no values to average")
    leaves, specs = [result[i] for i in filled], tuple(specs[i] for i in filled)
    usable = lax.all_gather(_fine(leaves), axis_name)
    if isinstance(pipeline.rule, Mean) and not pipeline.mixers:
        values, info = _mean(leaves, usable, axis_name)
    else:
        rows = _exchange(leaves, K, axis_name)
        rows = [jnp.where(usable[:, None], row, 0).astype(_compute(row)) for row in rows]
        layers = layers_of(specs, Buffers())
        own, info = _own_slices(pipeline, rows, usable, layers, axis_name, reference is not None)
        values = _gather(own, leaves, axis_name)
    for i, value in zip(filled, values, strict=True):
        result[i] = value
    means = jax.tree.unflatten(tree, result)
    return (means, {**info, "usable": usable}) if with_info else means


def _check(pipeline: Pipeline, K: int, reference: Any) -> None:
    """Raise ValueError for arguments that are not supported here."""
    if reference is not None and reference != 0:
        raise ValueError(f"reference={reference!r}: give the differences from it as x, and reference=0")
    missing = sorted(pipeline.needs & NOT_HERE)
    if missing:
        raise ValueError(f"{pipeline} needs {', '.join(missing)}, which robust_mean does not have")
    if isinstance(pipeline.rule, ColumnRule) and not pipeline.reduces_clients:
        raise ValueError(f"{pipeline} reduces mixtures coordinate by coordinate, which robust_mean does not do")
    pipeline.check(K)


def _check_varying(names: Sequence[str], leaves: Sequence[Any], axis_name: str) -> None:
    """Raise ValueError for values of which JAX knows that they are the same on all devices.

    Nearly always they are gradients of replicated parameters: JAX has added up those of all devices, liars included.
    """
    axes = _varying(lax.axis_index(axis_name))  # none where JAX does not keep track
    for name, leaf in zip(names, leaves, strict=True):
        if axes and not axes & _varying(leaf):
            raise ValueError(
                f"x{name} is the same on all devices of {axis_name!r}. In jax.shard_map the gradients of replicated "
                "parameters are added up over the devices before robust_mean can judge them: pass check_vma=False, or "
                f"differentiate by jax.lax.pcast(parameters, {axis_name!r}, to='varying')"
            )


def _varying(x: Any) -> frozenset[Any]:
    """The axes of the mesh over which JAX knows `x` to vary; none outside `shard_map` and with check_vma=False."""
    kind: Any = jax.typeof(x) if hasattr(jax, "typeof") else None
    kind = getattr(kind, "manual_axis_type", kind)
    return frozenset(getattr(kind, "varying", getattr(kind, "vma", ())))  # called vma before JAX 0.10


def _spec(name: str, leaf: Any) -> ArraySpec:
    if leaf.dtype.name not in COMPUTE:
        raise ValueError(f"x{name} has dtype {leaf.dtype}; expected float16, bfloat16, float32 or float64")
    return ArraySpec(tuple(leaf.shape), leaf.dtype.name, "float")


def _compute(row: Any) -> Any:
    return jnp.dtype(COMPUTE[row.dtype.name])


def _fine(leaves: Sequence[Any]) -> Any:
    """Whether this device's values can be used."""
    limits = [LARGEST[_compute(leaf).name] for leaf in leaves]
    pairs = zip(leaves, limits, strict=True)
    return jnp.stack([jnp.all(jnp.abs(leaf.astype(_compute(leaf))) <= limit) for leaf, limit in pairs]).all()


def _mean(leaves: Sequence[Any], usable: Any, axis_name: str) -> tuple[list[Any], dict[str, Any]]:
    """`pmean` over the usable devices."""
    mine = usable[lax.axis_index(axis_name)]
    share = jnp.where(2 * usable.sum() > len(usable), 1.0 / usable.sum(), jnp.nan)
    summed = [lax.psum(jnp.where(mine, leaf, 0).astype(_compute(leaf)), axis_name) for leaf in leaves]
    values = [
        (total * share.astype(total.dtype)).astype(leaf.dtype) for total, leaf in zip(summed, leaves, strict=True)
    ]
    return values, {"weights": jnp.where(usable, share, 0.0), "honesty": jnp.full(len(usable), jnp.nan)}


def _exchange(leaves: Sequence[Any], K: int, axis_name: str) -> list[Any]:
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


def _gather(own: Sequence[Any], leaves: Sequence[Any], axis_name: str) -> list[Any]:
    """The slices of all devices put together, in the shapes of the leaves."""
    whole = [lax.all_gather(row, axis_name, tiled=True) for row in own]
    return [x[: leaf.size].reshape(leaf.shape).astype(leaf.dtype) for x, leaf in zip(whole, leaves, strict=True)]


def _own_slices(
    pipeline: Pipeline, rows: Sequence[Any], usable: Any, layers: Sequence[Layer], axis_name: str, from_zero: bool
) -> tuple[list[Any], dict[str, Any]]:
    """This device's slice of the result, and the info."""
    K = len(usable)
    unknown = jnp.full(K, jnp.nan)
    if isinstance(pipeline.rule, ColumnRule):
        return [_reduce(pipeline.rule, row, usable) for row in rows], {"weights": unknown, "honesty": unknown}
    grams = _grams(rows, usable, layers, axis_name, from_zero=from_zero, with_zero="reference" in pipeline.needs)

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


def _grams(
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
