"""Blocks of checkpoints on an accelerator: read into pinned memory and copied while the previous block is processed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from honestly.arrays import Host, host_view
from honestly.sources.checkpoints.source import CheckpointSource

#: Threads that read from the files at once.
READERS = 8


class OnDevice:
    """A checkpoint source whose blocks are torch tensors on `device`. `ahead` starts to read what comes next."""

    on_host = False

    def __init__(self, source: CheckpointSource, device: str) -> None:
        import torch

        self._torch: Any = torch
        try:
            self._device: Any = torch.device(device)
            torch.empty(1, device=self._device)
            if self._device.type == "meta":
                raise RuntimeError("it holds no values")
        except (RuntimeError, AssertionError, TypeError) as error:
            source.close()
            raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0][:200]}") from None
        self.host = source
        # all but the blocks is the host's
        self.ids, self.leaves, self.layers, self.integers = source.ids, source.leaves, source.layers, source.integers
        self.refused, self.has_reference, self.notes = source.refused, source.has_reference, source.notes
        self.read, self.sink, self.faults = source.read, source.sink, source.faults
        self.read_integers, self.assemble = source.read_integers, source.assemble
        self._pinned: bool = self._device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(self._device) if self._pinned else None
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="honestly-ahead")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="honestly-read")
        self._waiting: dict[tuple[Any, ...], Future[Any]] = {}
        self._requests: set[tuple[int, ...]] = set()

    def block(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """(k, stop - start) on the device, in the leaf's own dtype: what `ahead` has read, else read now."""
        rows = tuple(clients)
        self._requests.add(rows)
        loading = self._waiting.pop((leaf, start, stop, rows), None)
        block = self._load(leaf, start, stop, rows) if loading is None else loading.result()
        if self._pinned:  # it was made on another stream, and must not be reused before this one is done with it
            block.record_stream(self._torch.cuda.current_stream(self._device))
        return block

    def read_ahead(self, leaf: int, start: int, stop: int) -> None:
        """Start to read this piece of the rows that were last asked for."""
        for rows in sorted(self._requests):
            self._waiting[leaf, start, stop, rows] = self._loader.submit(self._load, leaf, start, stop, rows)

    def new_pass(self) -> None:
        """Drop what was read ahead and not used."""
        self._requests.clear()
        self._waiting.clear()

    def _load(self, leaf: int, start: int, stop: int, rows: tuple[int, ...]) -> Any:
        torch = self._torch
        dtype = getattr(torch, self.leaves[leaf].spec.dtype)
        on_host = torch.empty((len(rows), stop - start), dtype=dtype, pin_memory=self._pinned)
        view: Host = host_view(on_host)
        list(self._readers.map(lambda j: self.host.raw(leaf, start, stop, rows[j], view[j]), range(len(rows))))
        if not self._pinned:
            return on_host.to(self._device)
        with torch.cuda.stream(self._stream):
            copy = on_host.to(self._device, non_blocking=True)
        self._stream.synchronize()  # this thread waits; the one that works on the block before does not
        return copy

    def close(self) -> None:
        """Stop reading, discard an unfinished output and close the files."""
        self._loader.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True, cancel_futures=True)
        self.host.close()
