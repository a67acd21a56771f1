"""Blocks of columns on an accelerator: where they lie, which layer they belong to, and their working precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import array_api_compat as aac

from honestly import arrays
from honestly.arrays import COMPUTE
from honestly.engine.passes.parts import Cuts, Part, cuts, parts_of
from honestly.engine.passes.plan import Block, blocks
from honestly.lazy import cached_property
from honestly.result import Float
from honestly.sources import Source
from honestly.sources.layers import Layers
from honestly.sources.matrix import Matrix

# Values of one centred block: 256 MiB in float32, small beside the clients and large beside a kernel's launch.
BLOCK = 1 << 26
# Columns of one launch where nothing is copied.
WHOLE = 1 << 30


class DeviceColumns:
    """The columns of a source whose arrays live on a device."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.leaves = source.leaves
        if isinstance(source, Matrix):
            self._like = source.block(0, 0, self.leaves[0].size, range(len(source.ids)))
        else:
            usable = (k for k in range(len(source.ids)) if k not in source.refused)
            self._like = source.block(0, 0, 1, [next(usable, len(source.ids))])

    @cached_property
    def _xp(self) -> Any:
        return arrays.namespace(self._like)

    @cached_property
    def _cuts(self) -> Cuts:
        return cuts(self.source.layers)

    def _slabs(self, rows: int, *, whole: bool = False, only: Sequence[int] | None = None) -> Iterator[Block]:
        """Blocks of columns, small leaves joined, of which a copy fits easily; whole leaves where nothing is copied.

        With `only`, those that hold columns of these layers.
        """
        for slab in blocks(self.leaves, WHOLE if whole else max(1024, BLOCK // rows)):
            if only is None or any(self._holds(*segment[:3], only) for segment in slab.segments):
                yield slab

    def _holds(self, leaf: int, start: int, stop: int, layers: Sequence[int]) -> bool:
        """Whether some of these columns belong to one of the layers."""
        return any(layer in layers and first < stop and last > start for first, last, layer in self._cuts[leaf])

    def _rows(self, slab: Block, clients: Sequence[int]) -> Any:
        """(k, width) values of a slab where they lie, or a copy that joins several leaves."""
        if len(slab.segments) == 1:
            leaf, start, stop, _ = slab.segments[0]
            return self.source.block(leaf, start, stop, clients)
        if isinstance(self.source, Layers) and not aac.is_jax_array(self._like):  # XLA compiles long lists slowly
            return self.source.slab([segment[:3] for segment in slab.segments], clients, slab.dtype.__name__)
        pieces = [self.source.block(leaf, start, stop, clients) for leaf, start, stop, _ in slab.segments]
        if len({str(piece.dtype) for piece in pieces}) > 1:
            pieces = [self._working(piece, slab.dtype.__name__) for piece in pieces]
        return self._xp.concat(pieces, axis=1)

    def _parts(self, slab: Block) -> list[Part]:
        """Which columns of a slab belong to which layer."""
        if len(self.source.layers) == 1:
            return [Part(0, slab.width, 0)]
        return parts_of(slab, self._cuts)

    def _judged_columns(self, slab: Block) -> Iterator[tuple[int, int]]:
        if not any(layer.follows for layer in self.source.layers):
            yield 0, slab.width
            return
        for start, stop, layer in self._parts(slab):
            if not self.source.layers[layer].follows:
                yield start, stop

    def _pieces(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """(leaf, start, stop) of blocks of which a copy fits easily."""
        for block in blocks(self.leaves, max(1024, BLOCK // rows)):
            for segment in block.segments:
                yield segment.leaf, segment.start, segment.stop

    def _compute(self, leaf: int) -> str:
        """The name of the dtype in which a leaf is computed."""
        return COMPUTE[self.leaves[leaf].spec.dtype].__name__

    def _working(self, values: Any, dtype: str) -> Any:
        if str(values.dtype).endswith(f".{dtype}"):  # most often; the array API takes its time to do nothing
            return values
        return self._xp.astype(values, getattr(self._xp, dtype), copy=False)

    def _centre(self, rows: Any, middle: Any, slab: Block) -> Any:
        compute = slab.dtype.__name__
        rows = self._working(rows, compute)
        return rows if middle is None else rows - self._working(middle, compute)

    def _to_device(self, weights: Float, rows: Any) -> Any:
        return self._xp.asarray(weights, dtype=rows.dtype, device=aac.device(rows))

    def _round(self, values: Any, leaf: int) -> Any:
        return self._working(values, self.leaves[leaf].spec.dtype)
