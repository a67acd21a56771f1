"""The mean over the devices of a mesh axis: what is checked, who is usable, and the plain mean."""

# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from honestly.arrays import COMPUTE, LARGEST, ArraySpec
from honestly.engine import Pipeline
from honestly.jax.slices import exchange, gather, own_slices
from honestly.rules.mean import Mean
from honestly.rules.rule import ColumnRule, Mixer, Rule
from honestly.sources import Leaf
from honestly.sources.grouping import Buffers, layers_of

#: Needs of rules that cannot be met here.
NOT_HERE = frozenset({"signs", "updates", "buffers", "root", "sizes", "trusted client"})


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
        rows = exchange(leaves, K, axis_name)
        rows = [jnp.where(usable[:, None], row, 0).astype(_compute(row)) for row in rows]
        layers = layers_of(specs, Buffers())
        own, info = own_slices(pipeline, rows, usable, layers, axis_name, reference is not None)
        values = gather(own, leaves, axis_name)
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
