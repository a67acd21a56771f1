"""A client's update as NumPy arrays by path: the difference to the model that it started from, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from honestly import arrays
from honestly.arrays import Host
from honestly.sources.tree import UnusableError, difference, flatten, rebuild, signature, tensor_label


def host_difference(update: Any, base: Any) -> dict[str, Host]:
    """The update's arrays by path, on the host, as copies: the caller may change the originals."""
    arrays = {name: _array(name, leaf) for name, leaf in flatten(update).items()}
    if base is None:
        return arrays
    start = {name: _array(name, leaf) for name, leaf in flatten(base).items()}
    if signature(arrays) != signature(start):
        raise UnusableError(difference(signature(arrays), signature(start)))
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: _change(values, start[name].astype(values.dtype)) for name, values in arrays.items()}


def _change(new: Host, old: Host) -> Host:
    """`new - old`; of booleans, such as masks, which cannot be subtracted, those that changed."""
    return new ^ old if new.dtype.kind == "b" else new - old


def add_change(old: Host, change: Host) -> Host:
    """The tensor that differs from `old` by this change, in the dtype of `old`."""
    return old ^ change if old.dtype.kind == "b" else (old + change).astype(old.dtype)


def _array(name: str, leaf: Any) -> Host:
    what = arrays.spec(leaf)
    signature({name: leaf})
    values = arrays.to_host(leaf)
    if what.dtype == "bfloat16":  # NumPy has no bfloat16: store it as float32
        wide = np.empty(values.size, np.float32)
        arrays.widen(np.ascontiguousarray(values).reshape(-1), wide)
        return wide.reshape(what.shape)
    return np.array(values, dtype=values.dtype.newbyteorder("="))


def check_values(change: Mapping[str, Host], layout: Any) -> None:
    """Raise `UnusableError` if an update has another layout, unless that is None, or values that are not finite."""
    form = signature(change)
    if layout is not None and form != layout:
        raise UnusableError(difference(form, layout))
    for name, values in change.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise UnusableError(f"{tensor_label(name)} holds values that are not finite")


def in_container(value: Mapping[str, Host], like: Any) -> Any:
    """Arrays by path as `like` holds them; without it, as one array, a list or a dict, whichever the paths name."""
    if like is not None:
        return rebuild(like, lambda path: value[path])
    if list(value) == [""]:
        return value[""]
    if list(value) == [f"[{i}]" for i in range(len(value))]:
        return list(value.values())
    return dict(value)


def digest(arrays: Mapping[str, Host]) -> str:
    """A hash of the values: updates with the same hash are the same update."""
    hasher = hashlib.sha256()
    for name, values in arrays.items():
        hasher.update(repr((name, values.dtype.str, values.shape)).encode("utf-8", "backslashreplace"))
        hasher.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()[:32]
