"""The geometry that attacks share: means, spreads and lengths of updates, in any array library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, to_device

from honestly.result import Float

if TYPE_CHECKING:
    from honestly.sim.attacks.attack import View

Array: TypeAlias = Any


@dataclass(frozen=True)
class DrawnAhead:
    """The (M, d) standard normal numbers that a generator gives first, and its states before and after that draw."""

    numbers: np.ndarray
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @classmethod
    def of(cls, rng: np.random.Generator, shape: tuple[int, ...]) -> DrawnAhead:
        """Draw them, in float32."""
        before = rng.bit_generator.state
        return cls(rng.standard_normal(shape, dtype=np.float32), before, rng.bit_generator.state)

    def take(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray | None:
        """The numbers, as if ``rng`` drew them now; None where it would give others."""
        if self.numbers.shape != tuple(shape) or rng.bit_generator.state != self.before:
            return None
        rng.bit_generator.state = self.after
        return self.numbers


def normal(view: View, shape: tuple[int, ...]) -> Array:
    """Standard normal numbers of ``view.rng``, in the library, dtype and device of the updates."""
    wide = "64" in str(view.own.dtype)
    draws = None if view.noise is None or wide else view.noise.take(view.rng, shape)
    if draws is None:
        draws = view.rng.standard_normal(shape, dtype=np.float64 if wide else np.float32)
    return view.xp.asarray(draws, dtype=view.own.dtype, device=view.own.device)


def mean(rows: Array) -> Array:
    """(d,) mean of the rows."""
    xp = array_namespace(rows)
    return xp.mean(rows, axis=0)


def std(rows: Array) -> Array:
    """(d,) standard deviation of each coordinate, 0 for a single row."""
    xp = array_namespace(rows)
    return xp.sqrt(xp.mean((rows - xp.mean(rows, axis=0)) ** 2, axis=0))


def norm(x: Array) -> float:
    """Euclidean length of a vector (or of all entries)."""
    xp = array_namespace(x)
    return float(xp.sqrt(xp.sum(x * x)))


def spread(rows: Array) -> float:
    """Root mean squared distance of the rows to their mean: the square root of the honest variance."""
    return norm(rows - mean(rows)[None, :]) / math.sqrt(max(int(rows.shape[0]), 1))


def rms(x: Array) -> float:
    """Root mean square of the entries."""
    return norm(x) / math.sqrt(max(math.prod(x.shape), 1))


def unit(x: Array) -> Array:
    """``x`` with length 1; the zero vector stays as it is."""
    length = norm(x)
    return x / length if length > 0.0 else x


def host(x: Array) -> Float:
    """The numbers of a small array on the host, in float64."""
    return np.asarray(to_device(x, "cpu"), dtype=np.float64)


def gram(rows: Array) -> Float:
    """(n, n) Gram matrix of the rows on the host, in float64; centre the rows before."""
    return host(rows @ rows.T)


def of_length(x: Array, length: float) -> Array:
    """``x`` with that length; the zero vector stays as it is."""
    size = norm(x)
    return x * (length / size) if size > 0.0 else x


def lengths(rows: Array) -> Array:
    """(n,) Euclidean lengths of the rows."""
    xp = array_namespace(rows)
    return xp.sqrt(xp.sum(rows * rows, axis=1))


def principal(G: Float) -> Float:
    """(n,) coordinates of n centred vectors with Gram matrix G along their first principal direction, up to scale.

    Where training has diverged there is no direction, and all are alike.
    """
    if not np.isfinite(G).all():
        return np.ones(len(G))
    return np.linalg.eigh(G)[1][:, -1]


def largest_root(a: float, b: float, c: float) -> float:
    """The largest gamma >= 0 with `a gamma^2 + 2 b gamma + c <= 0`, 0 if there is none (c > 0) or no bound (a = 0).

    >>> largest_root(1.0, 0.0, -4.0)
    2.0
    """
    if a <= 0.0 or c > 0.0:
        return 0.0
    return max((-b + math.sqrt(max(b * b - a * c, 0.0))) / a, 0.0)


def smallest(values: Array, count: int) -> Array:
    """(d,) mask of the ``count`` smallest entries; of equal ones the first.

    >>> smallest(np.array([3.0, 1.0, 2.0]), 2)
    array([False,  True,  True])
    """
    xp = array_namespace(values)
    mask = np.zeros(int(values.shape[0]), dtype=bool)
    mask[np.argsort(host(values), kind="stable")[:count]] = True
    return xp.asarray(mask, device=values.device)


def pieces(layers: Sequence[int], d: int) -> list[slice]:
    """Where each layer lies in a flat update of d numbers; one layer where none are known.

    >>> pieces([2, 3], 5)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    sizes = list(layers) if sum(layers) == d else [d]
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def output_layer(layers: Sequence[int], d: int) -> tuple[slice, slice] | None:
    """Where weight and bias of the output layer lie in a flat update: the last two tensors, as PyTorch orders them.

    The weight has a row per class. None where the layers are unknown or the last two do not fit together.

    >>> output_layer([7, 12, 3], 22)
    (slice(7, 19, None), slice(19, 22, None))
    >>> output_layer([7, 8], 15) is None
    True
    """
    cuts = pieces(layers, d)
    if len(cuts) < 2:
        return None
    rows, classes = cuts[-2].stop - cuts[-2].start, cuts[-1].stop - cuts[-1].start
    return (cuts[-2], cuts[-1]) if rows > classes > 1 and rows % classes == 0 else None


def recall(view: View, name: str) -> Array | None:
    """What the attack remembered under that name, in the library and on the device of the updates; None if nothing."""
    if name not in view.memory:
        return None
    return view.xp.asarray(view.memory[name], dtype=view.own.dtype, device=view.own.device)


def keep_model(view: View) -> dict[str, Array]:
    """A copy of the global model for the memory, from which `last_change` is found; nothing if there is none."""
    return {} if view.reference is None else {"model": view.xp.asarray(view.reference, copy=True)}


def last_change(view: View, name: str = "model") -> Array | None:
    """(d,) how far the global model moved since the round that left it in memory; None in the first round."""
    before = recall(view, name)
    return None if before is None or view.reference is None else view.reference - before
