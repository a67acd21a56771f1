"""Open K checkpoints: agree on the model's layout, and exclude clients that differ, by name.

Headers are read twice: once to see what most clients hold, of which only a digest is kept, and once to keep what will
be read. So a client's header uses memory only while it is parsed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

from honestly.sources.checkpoints.checkpoint import Checkpoint, read_checkpoint
from honestly.sources.checkpoints.conflicts import RESULT, check_place, is_result
from honestly.sources.checkpoints.files import Pool
from honestly.sources.checkpoints.names import factor_of
from honestly.sources.checkpoints.options import Checkpoints
from honestly.sources.checkpoints.source import CheckpointSource
from honestly.sources.checkpoints.writer import Output
from honestly.sources.source import Source
from honestly.sources.tree import UnusableError, difference

Signature = dict[str, tuple[tuple[int, ...], str]]


class _Look(NamedTuple):
    """What is remembered of a client after the first look."""

    adapter: bool
    digest: bytes


def open_checkpoints(files: Checkpoints, *, reference: Any = None, root: Any = None, out: Any = None) -> Source:
    """The source for these files. A client that cannot be read or differs from the others is excluded."""
    output = None if out is None else Output.at(out)
    if output is not None and not files.allow_overwrite:
        check_place(output.path, files.listed)
    return _Opening(files, output).source(reference, root)


class _Opening:
    def __init__(self, files: Checkpoints, output: Output | None) -> None:
        self.files, self.output = files, output
        self.pool = Pool()
        self.refused: dict[int, str] = {}

    def source(self, reference: Any, root: Any) -> Source:
        extras = [self._extra("reference", reference), self._extra("root", root)]
        looks = {k: look for k in range(len(self.files.listed)) if (look := self._look(k)) is not None}
        adapter = self._are_adapters(looks, extras[0])
        for k, look in looks.items():
            if look.adapter != adapter:
                mine, theirs = ("a LoRA adapter", "checkpoints") if look.adapter else ("a checkpoint", "LoRA adapters")
                self.refused[k] = f"is {mine}, while most clients sent {theirs}"
        if adapter:
            from honestly.sources.checkpoints.lora import open_adapters

            rows = [self._read(k) if k not in self.refused else None for k in range(len(self.files.listed))]
            return open_adapters(self.files, rows, self.refused, extras, self.output, self.pool)
        return self._plain({k: look for k, look in looks.items() if k not in self.refused}, extras)

    def _plain(self, looks: dict[int, _Look], extras: Sequence[Checkpoint | None]) -> Source:
        rows, expected = self._agreeing(looks, extras[0])
        for name, extra in (("reference", extras[0]), ("root", extras[1])):
            if extra is not None and expected and signature(extra) != expected:
                raise ValueError(f"{name}: {difference(signature(extra), expected)}")
        if self.files.lora != "factors" and any(factor_of(name) for name in expected):
            raise ValueError(
                "these files hold LoRA factors without their adapter_config.json: pass the adapters' folders, so "
                "the products are averaged, or lora='factors' to average A and B by themselves"
            )
        source = CheckpointSource(
            self.files.ids, rows, self.refused, pool=self.pool, extras=extras, output=self.output,
            progress=self.files.progress, buffers=self.files.buffers,
        )  # fmt: skip
        if self.files.device == "cpu":
            return source
        from honestly.sources.checkpoints.device import OnDevice

        return OnDevice(source, self.files.device)

    def _agreeing(
        self, looks: dict[int, _Look], reference: Checkpoint | None
    ) -> tuple[list[Checkpoint | None], Signature]:
        """The checkpoints with the signature of the reference, else of most clients; the others are refused."""
        rows: list[Checkpoint | None] = [None] * len(self.files.listed)
        if reference is not None:
            agreed, expected = _digest(reference), signature(reference)
        else:
            votes = Counter(look.digest for look in looks.values())
            agreed, expected = max(votes, key=lambda digest: votes[digest], default=b""), {}
        names, order = dict[str, str](), dict[str, int]()
        for k in sorted(looks, key=lambda k: looks[k].digest != agreed):  # those that agree define the layout
            checkpoint = self._read(k)
            if checkpoint is None:
                continue
            if _digest(checkpoint) == agreed:
                expected = expected or signature(checkpoint)
                if not order:
                    names, order = {name: name for name in expected}, {name: i for i, name in enumerate(expected)}
                rows[k] = checkpoint.compact(names, order)
            elif not expected:
                self.refused[k] = "changed while it was opened"
            else:
                self.refused[k] = difference(signature(checkpoint), expected)
        return rows, expected

    def _are_adapters(self, looks: dict[int, _Look], reference: Checkpoint | None) -> bool:
        if reference is not None:
            return reference.kind == "adapter"
        return 2 * sum(look.adapter for look in looks.values()) > len(looks)

    def _look(self, k: int) -> _Look | None:
        checkpoint = self._read(k)
        return None if checkpoint is None else _Look(checkpoint.kind == "adapter", _digest(checkpoint))

    def _read(self, k: int) -> Checkpoint | None:
        try:
            checkpoint = read_checkpoint(
                self.files.listed[k], self.pool,
                follow_symlinks=self.files.follow_symlinks, allow_torch=self.files.allow_torch,
            )  # fmt: skip
            if not checkpoint.tensors:
                raise UnusableError("holds no tensors")
            if is_result(checkpoint) and not self.files.allow_results:
                raise UnusableError(RESULT)
        except UnusableError as reason:
            self.refused[k] = str(reason)
            return None
        except MemoryError:
            self.refused[k] = "cannot be read: its header needs more memory than there is"
            return None
        return checkpoint

    def _extra(self, name: str, extra: Any) -> Checkpoint | None:
        """The reference or root. It is the caller's own, so links are followed and faults are raised."""
        if extra is None:
            return None
        if not isinstance(extra, str | PathLike):
            raise ValueError(f"{name} is a {type(extra).__name__}; if the updates are files, it must be a path, too")
        try:
            checkpoint = read_checkpoint(
                str(extra), self.pool, follow_symlinks=True, allow_torch=self.files.allow_torch
            )
            if not checkpoint.tensors:
                raise UnusableError("holds no tensors")
        except UnusableError as reason:
            raise ValueError(f"{name}: {reason}") from None
        return checkpoint


def signature(checkpoint: Checkpoint) -> Signature:
    """Name -> (shape, kind): two clients with equal signatures can be averaged."""
    return {name: (tensor.spec.shape, tensor.spec.kind) for name, tensor in checkpoint.tensors.items()}


def _digest(checkpoint: Checkpoint) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, described in sorted(signature(checkpoint).items()):
        digest.update(repr((name, described)).encode())
    return digest.digest()


__all__ = ["open_checkpoints", "signature"]
