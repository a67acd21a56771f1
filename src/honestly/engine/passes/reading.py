"""Blocks of columns as NumPy reads them: where they lie if possible, else in scratch memory of the thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.arrays import COMPUTE, Host, host_dtype
from honestly.engine.passes.keys import to_keys
from honestly.engine.passes.plan import Block
from honestly.sources import Source
from honestly.sources.matrix import Matrix
from honestly.sources.source import InMemorySource


class BlockReader:
    """Reads blocks of any source that the host can read, on several threads at once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.leaves = source.leaves
        self._local = threading.local()

    def fill(self, block: Block, clients: Sequence[int], out: Host, centre: int | None) -> None:
        """Read the block of these clients into the rows of `out`, less the centre's."""
        for leaf, start, stop, offset in block.segments:
            minus = None
            if centre is not None:
                minus = np.empty((1, stop - start), dtype=block.dtype)
                self.source.read(leaf, start, stop, [centre], minus, None)
                minus = minus[0]
            with np.errstate(over="ignore", invalid="ignore"):
                self.source.read(leaf, start, stop, clients, out[:, offset : offset + stop - start], minus)

    def scratch(self, rows: int, width: int, dtype: Any, use: str = "values") -> Host:
        """This thread's own buffer for that use."""
        room = getattr(self._local, use, None)
        if room is None or room.shape != (rows, width) or room.dtype != dtype:
            room = np.empty((rows, width), dtype=dtype)
            setattr(self._local, use, room)
        return room

    def direct(self, block: Block, clients: Sequence[int]) -> Host | None:
        """The rows where they lie, if they can be multiplied there."""
        if not isinstance(self.source, Matrix) or len(block.segments) != 1:
            return None
        segment = block.segments[0]
        return self.source.direct(segment.start, segment.stop, clients, block.dtype)

    def all_direct(self, clients: Sequence[int]) -> bool:
        """Whether no block of these clients has to be copied."""
        if not isinstance(self.source, Matrix):
            return False
        leaf = self.leaves[0]
        return self.source.direct(0, leaf.size, clients, COMPUTE[leaf.spec.dtype]) is not None

    def in_place(self, clients: Sequence[int]) -> bool:
        """Whether blocks within a tensor need not be copied: all of these clients' tensors lie in memory, each in one
        piece and as the result is stored."""
        source = self.source
        if not isinstance(source, InMemorySource):
            return False
        for i, leaf in enumerate(self.leaves):
            dtype = host_dtype(leaf.spec)
            for k in clients:
                x = source.flat_view(i, k)
                if x is None or x.dtype != dtype or not x.flags.c_contiguous:
                    return False
        return True

    def rows(self, block: Block, clients: Sequence[int], dtype: Any) -> list[Host] | None:
        """Each client's values where they lie, if they are of this dtype and the block is a part of one tensor; the
        caller knows that they lie in place."""
        leaf, start, stop, _ = block.segments[0]
        if len(block.segments) != 1 or host_dtype(self.leaves[leaf].spec) != dtype:
            return None
        assert isinstance(self.source, InMemorySource)
        views = [self.source.flat_view(leaf, k) for k in clients]
        return [x[start:stop] for x in views if x is not None]

    def keys(self, block: Block, clients: Sequence[int], width: int) -> tuple[Host, np.dtype[Any]] | None:
        """(n, b) float16 or bfloat16 values that lie in place as integers of the same order, and which they are."""
        kind = host_dtype(self.leaves[block.segments[0].leaf].spec)
        rows = self.rows(block, clients, kind) if kind.itemsize == 2 else None
        if rows is None:
            return None
        keys = self.scratch(len(rows), width, np.int16)[:, : block.width]
        for row, key in zip(rows, keys, strict=True):
            to_keys(row.view(np.int16), key)
        return keys, kind
