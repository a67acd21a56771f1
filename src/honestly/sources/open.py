"""Choose the source for what the caller passed: an array, a mapping, a sequence of containers, or paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from honestly.arrays import is_array
from honestly.sources.checkpoints.options import Checkpoints, are_paths
from honestly.sources.grouping import Buffers
from honestly.sources.layers import Layers
from honestly.sources.matrix import Matrix
from honestly.sources.source import Source

ACCEPTED = (
    "a (K, d) array, a sequence of K state dicts, of K lists of arrays or of K arrays, "
    "of K paths of checkpoints, or a mapping from client id to update"
)


def open_source(
    updates: Any,
    *,
    reference: Any = None,
    root: Any = None,
    out: Any = None,
    layers: Any = None,
    buffers: Any = "follow",
) -> Source:
    """The source that fits `updates`. Raises ValueError, naming what was passed, if none does."""
    known = Buffers.of(buffers)
    array = is_array(updates)
    if not array and (isinstance(updates, Checkpoints) or are_paths(updates)):
        from honestly.sources.checkpoints import open_checkpoints

        if layers is not None:
            raise ValueError("layers is for updates that are flat arrays; files name their tensors, so leave it out")
        files = updates if isinstance(updates, Checkpoints) else Checkpoints(updates)
        files = files if files.buffers is not None else replace(files, buffers=known)
        return open_checkpoints(files, reference=reference, root=root, out=out)
    if out is not None:
        raise ValueError(f"out is {str(out)!r}, but the updates are not files; keep the result's value instead")
    if array:
        return Matrix(updates, reference=reference, root=root, sizes=layers, buffers=known)
    if isinstance(updates, Mapping):
        return Layers(
            list(updates), list(updates.values()), reference=reference, root=root, sizes=layers, buffers=known
        )
    if isinstance(updates, str | bytes | PathLike):
        raise ValueError(f"updates is the single path {str(updates)!r}; pass a sequence of K of them, or {ACCEPTED}")
    if isinstance(updates, Iterator):
        raise ValueError(
            f"updates is a {type(updates).__name__}, which can be read only once and aggregation takes two passes; "
            "pass list(updates)"
        )
    if not isinstance(updates, Sequence):
        raise ValueError(f"updates is a {type(updates).__name__}; expected {ACCEPTED}")
    return Layers(range(len(updates)), updates, reference=reference, root=root, sizes=layers, buffers=known)
