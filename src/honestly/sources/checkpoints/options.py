"""Options for the files that are averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from honestly.result import ClientId
from honestly.sources.grouping import Buffers

#: How the weighted mean of LoRA adapters is written, see `Checkpoints`.
LORA = ("exact", "svd", "factors")


@dataclass(frozen=True)
class Checkpoints:
    """K checkpoint files to average, with options. For the defaults, plain paths suffice.

    Args:
        paths: a sequence of paths, or a mapping from client id to path: safetensors files, folders of shards, LoRA
            adapter folders (PEFT), `.npz` files, or PyTorch files if `allow_torch`.
        lora: how the mean of LoRA products `BA` is written: "exact" keeps it whole by concatenating the ranks, "svd"
            re-factors it to rank `rank` and reports the error, "factors" averages `A` and `B` by themselves, which is
            not the mean of `BA` and gives a warning.
        rank: rank of the result for `lora="svd"`; that of most clients by default.
        allow_torch: read PyTorch files too, with `weights_only=True`.
        follow_symlinks: read through symbolic links, which otherwise exclude a client.
        device: "cpu", or a torch device such as "cuda" through which the blocks are streamed.
        progress: called now and then with the bytes read so far and the bytes of one pass over all clients.
        buffers: how to treat BatchNorm's running means and variances; by default as `hn.aggregate` is told.
        allow_results: False excludes files that an earlier aggregation wrote, which are not clients (the command's
            default, because `*.safetensors` matches them); True includes them, such as the averages of edge servers.
        allow_overwrite: let the output replace one of the inputs; otherwise that is a ValueError.

    Example:
        >>> Checkpoints(["a.safetensors", "b.safetensors", "c.safetensors"], lora="svd", rank=8).rank
        8
    """

    paths: Sequence[str | PathLike[str]] | Mapping[ClientId, str | PathLike[str]]
    lora: str = "exact"
    rank: int | None = None
    allow_torch: bool = False
    follow_symlinks: bool = False
    device: str = "cpu"
    progress: Callable[[int, int], None] | None = None
    buffers: Any = None
    allow_results: bool = True
    allow_overwrite: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.paths, str | bytes | PathLike) or not are_paths(self.paths):
            raise ValueError(
                f"paths is {str(self.paths)[:100]!r}, expected a sequence of paths or a mapping from client id to path"
            )
        if self.lora not in LORA:
            raise ValueError(f"lora is {self.lora!r}, expected one of {', '.join(LORA)}")
        if self.rank is not None and (type(self.rank) is not int or self.rank < 1):
            raise ValueError(f"rank is {self.rank!r}, expected an integer >= 1")
        if self.rank is not None and self.lora != "svd":
            raise ValueError(f"rank is {self.rank}, but only lora='svd' has a rank to choose; lora is {self.lora!r}")

        if self.buffers is not None:
            Buffers.of(self.buffers)

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """The clients: the keys of the mapping, or 0..K-1."""
        return tuple(self.paths) if isinstance(self.paths, Mapping) else tuple(range(len(self.paths)))

    @property
    def listed(self) -> list[str]:
        """The paths in the clients' order."""
        return [_text(path) for path in (self.paths.values() if isinstance(self.paths, Mapping) else self.paths)]


def _text(path: str | PathLike[str]) -> str:
    return path if isinstance(path, str) else path.__fspath__()


def are_paths(updates: Any) -> bool:
    """True for a sequence or mapping, not empty, of nothing but paths."""
    if isinstance(updates, Mapping):
        updates = list(updates.values())
    if not isinstance(updates, Sequence) or isinstance(updates, str | bytes):
        return False
    return bool(updates) and all(isinstance(update, str | PathLike) for update in updates)
