"""The caller's tensors: one, a list or a mapping, whole or sharded, and how to rebuild the container."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from honestly.sources import Leaf
from honestly.torch.slices import leaf_of

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Tensors:
    """Named tensors on one device.

    Attributes:
        names: of the tensors; `[i]` in a list.
        originals: the tensors as they came.
        local: their values on this rank, without a graph: the tensor itself, or the local part of a DTensor.
        container: what they came in.
    """

    names: tuple[str, ...]
    originals: tuple[torch.Tensor, ...]
    local: tuple[torch.Tensor, ...]
    container: Any

    @classmethod
    def of(cls, tensors: Any, layers: Sequence[int] | None = None) -> Tensors:
        """Raises ValueError if these cannot be averaged."""
        values: Any
        if isinstance(tensors, torch.Tensor):
            if layers is not None:
                return cls._cut(tensors, layers)
            names, values = ("",), (tensors,)
        elif layers is not None:
            raise ValueError("layers is for one flat tensor; a list or a mapping of tensors says where each ends")
        elif isinstance(tensors, Mapping):
            items = cast("Mapping[Any, Any]", tensors)
            names, values = tuple(map(str, items)), tuple(items.values())
        elif isinstance(tensors, Sequence) and not isinstance(tensors, str | bytes):
            values = tuple(cast("Sequence[Any]", tensors))
            names = tuple(f"[{i}]" for i in range(len(values)))
        else:
            raise ValueError(
                f"tensors is a {type(tensors).__name__}; expected a tensor, a list or a mapping of tensors"
            )
        local = tuple(_local(name, x) for name, x in zip(names, values, strict=True))
        devices = {str(x.device) for x in local}
        if len(devices) > 1:
            raise ValueError(f"the tensors are on several devices ({', '.join(sorted(devices))}); expected one")
        return cls(names, values, local, tensors)

    @classmethod
    def _cut(cls, flat: torch.Tensor, layers: Sequence[int]) -> Tensors:
        values = _local("", flat)
        try:
            sizes = [int(size) for size in layers]
        except (TypeError, ValueError):
            raise ValueError(f"layers is {layers!r}; expected the number of values of each layer, in order") from None
        if values.ndim != 1 or sum(sizes) != values.numel() or min(sizes, default=0) < 0:
            raise ValueError(f"layers={sizes} sum to {sum(sizes)}, but the tensor has shape {tuple(values.shape)}")
        parts = values.split(sizes)
        return cls(tuple(f"[{i}]" for i in range(len(parts))), parts, parts, flat)

    def zeros(self) -> Tensors:
        """Zeros of the same layout, which take no memory."""
        nothing = tuple(torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape) for x in self.local)
        return Tensors(self.names, nothing, nothing, nothing)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.local[0].device if self.local else torch.device("cpu")

    def leaves(self) -> tuple[Leaf, ...]:
        """The tensors as a whole, as an error names them."""
        return tuple(leaf_of(name, x.shape, x.dtype) for name, x in zip(self.names, self.originals, strict=True))

    def copies(self, shards: Any) -> list[int]:
        """For each tensor 0 if it is replicated nowhere among the shards; else 1 on the first of them, 2 on others."""
        if shards is None:
            return [0] * len(self.local)
        ranks = set(torch.distributed.get_process_group_ranks(shards))
        return [_copy(x, ranks) for x in self.originals]

    def words(self, *, local: bool, shards: Any = None) -> str:
        """A line for each tensor: what all ranks must have alike."""
        values = self.local if local else self.originals
        kind = [f"{self.device.type}{('', ' replicated', ' copy')[copy]}" for copy in self.copies(shards)]
        lines = [f"{n} {tuple(x.shape)} {x.dtype} {k}" for n, x, k in zip(self.names, values, kind, strict=True)]
        return "\n".join([f"{len(lines)} tensors", *lines])

    def like(self, other: Tensors, what: str) -> Tensors:
        """Itself, with its tensors in the order of the other's where the names are the same. ValueError if the shapes
        are not.
        """
        place = {name: i for i, name in enumerate(self.names)}
        order = [place[name] for name in other.names] if set(place) == set(other.names) else range(len(self.names))
        originals, local = (tuple([values[i] for i in order]) for values in (self.originals, self.local))
        mine, theirs = [tuple(x.shape) for x in local], [tuple(x.shape) for x in other.local]
        if mine != theirs:
            raise ValueError(f"{what} has tensors of shapes {mine[:8]}, expected {theirs[:8]}")
        return Tensors(tuple(self.names[i] for i in order), originals, local, self.container)

    def rebuilt(self, values: Sequence[torch.Tensor]) -> Any:
        """New values in the container that these came in."""
        if isinstance(self.container, torch.Tensor):
            if len(values) != 1 or self.originals[0] is not self.container:
                return torch.cat([x.reshape(-1) for x in values])
            return _like(values[0], self.originals[0])
        new = [_like(value, old) for value, old in zip(values, self.originals, strict=True)]
        if isinstance(self.container, Mapping):
            return dict(zip(cast("Mapping[Any, Any]", self.container), new, strict=True))
        return tuple(new) if isinstance(self.container, tuple) else new


def dtensor() -> Any:
    """torch's class of sharded tensors, if it was imported; otherwise no tensor can be one."""
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", ()) if module is not None else ()


def whole_or_shard(x: torch.Tensor) -> torch.Tensor:
    """The values of a tensor on this rank, without a graph: of a DTensor the local part."""
    return (cast("Any", x).to_local() if isinstance(x, dtensor()) else x).detach()


def _local(name: str, x: Any) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"tensor {name!r} is a {type(x).__name__}, expected a torch.Tensor")
    if isinstance(x, dtensor()):
        partial = [str(place) for place in cast("Any", x).placements if place.is_partial()]
        if partial:
            raise ValueError(f"tensor {name!r} is a DTensor of placement {partial[0]}; reduce it inside its mesh first")
    x = whole_or_shard(x)
    if x.layout != torch.strided:
        raise ValueError(f"tensor {name!r} is {x.layout}; expected a dense tensor")
    if x.dtype not in FLOATS:
        raise ValueError(
            f"tensor {name!r} has dtype {x.dtype}; a robust average needs float16, bfloat16, float32 or float64"
        )
    if x.device.type == "meta":
        raise ValueError(f"tensor {name!r} is on device 'meta', which holds no values")
    return x


def _copy(x: torch.Tensor, ranks: set[int]) -> int:
    if not isinstance(x, dtensor()):
        return 0
    mesh: Any = cast("Any", x).device_mesh
    over = [
        i
        for i, place in enumerate(cast("Any", x).placements)
        if place.is_replicate()
        and mesh.size(i) > 1
        and ranks.issuperset(torch.distributed.get_process_group_ranks(mesh.get_group(i)))
    ]
    return 0 if not over else 1 if all(mesh.get_local_rank(i) == 0 for i in over) else 2


def _like(value: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """A DTensor if the old one is."""
    if not isinstance(old, dtensor()):
        return value
    sharded: Any = old
    return dtensor().from_local(
        value, sharded.device_mesh, sharded.placements, run_check=False, shape=sharded.shape, stride=sharded.stride()
    )
