"""Passes on an accelerator over files: the next block is read while this one is worked on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from honestly import arrays
from honestly.arrays import COMPUTE
from honestly.engine.passes import explain
from honestly.engine.passes.device import DevicePasses
from honestly.engine.passes.plan import Block, Segment, blocks
from honestly.result import Float
from honestly.sources import Leaf, Sink
from honestly.sources.checkpoints.device import OnDevice

# Values of one block of all rows: 32 MB in float32 of pinned memory, of which two are in use at a time.
BLOCK = 1 << 23


class StreamedPasses(DevicePasses):
    """Like on any accelerator, but neither the clients nor the result need to fit in its memory."""

    def __init__(self, source: OnDevice) -> None:
        super().__init__(source)
        self._files = source

    def distances(self, clients: Sequence[int], values: Sequence[Any]) -> Float:
        """(k, leaves) squared distances to the result, which lies on the host."""
        return explain.on_host(self._files.host, clients, values, max(64, (1 << 18) // len(clients)))

    def _slabs(self, rows: int, *, whole: bool = False, only: Sequence[int] | None = None) -> Iterator[Block]:
        """A block for each piece of a leaf: they are read one after the other."""
        for leaf, start, stop in self._pieces(rows, only):
            dtype = COMPUTE[self.leaves[leaf].spec.dtype]
            yield Block(dtype, stop - start, (Segment(leaf, start, stop, 0),))

    def _pieces(self, rows: int, only: Sequence[int] | None = None) -> Iterator[tuple[int, int, int]]:
        self._files.new_pass()
        before: tuple[int, int, int] | None = None
        for block in blocks(self.leaves, max(1024, BLOCK // rows)):
            for segment in block.segments:
                piece = segment.leaf, segment.start, segment.stop
                if only is not None and not self._holds(*piece, only):
                    continue
                if before is not None:
                    self._files.read_ahead(*piece)
                    yield before
                before = piece
        if before is not None:
            yield before

    def _sink(self) -> Any:
        return _ToHost(self._files.sink(), self.leaves)


class _ToHost:
    """Takes pieces of the result on the device and hands them to a sink on the host."""

    def __init__(self, sink: Sink, leaves: Sequence[Leaf]) -> None:
        self._sink, self._leaves = sink, leaves

    def put(self, leaf: int, start: int, stop: int, values: Any) -> None:
        """The values have been rounded to the leaf's dtype: widened again for the sink, they round to themselves."""
        wide = np.empty(stop - start, COMPUTE[self._leaves[leaf].spec.dtype])
        arrays.widen(arrays.to_host(values), wide)
        self._sink.put(leaf, start, stop, wide)

    def finish(self) -> Sequence[Any]:
        """All pieces are in."""
        return self._sink.finish()
