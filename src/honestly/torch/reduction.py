"""One robust all-reduce under way: slices are exchanged, measured, judged, averaged and gathered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from honestly.engine import Pipeline, run
from honestly.result import Aggregate, Float
from honestly.sources import Layer, Leaf
from honestly.sources.grouping import Buffers, layers_of
from honestly.torch.layout import DtypeSection, RankBlock, blocks, sections
from honestly.torch.members import Members
from honestly.torch.passes import OwnPasses, RankPasses
from honestly.torch.slices import REFERENCE, ROOT, Slices, Update
from honestly.torch.tensors import Tensors

FOLLOW = Buffers()
#: Exchanges that are under way at a time: one is sent while the next is made ready.
IN_FLIGHT = 2


class Reduction:
    """Tensors may come in several batches, each of which is sent at once (`send`); `finish` decides on all of them.

    Args:
        members: the ranks.
        pipeline: mixers and the rule.
        sizes: what the ranks say of their sizes.
        buffers: which tensors are not judged, as in `hn.aggregate`.
        record: keep what a check needs.
    """

    def __init__(
        self,
        members: Members,
        pipeline: Pipeline,
        sizes: Float | None = None,
        *,
        buffers: Buffers = FOLLOW,
        record: bool = False,
    ) -> None:
        self.members, self.pipeline, self.sizes, self.buffers, self.record = members, pipeline, sizes, buffers, record
        self.cut: list[DtypeSection] = []
        self.leaves: list[Leaf] = []
        self.local: list[torch.Tensor] = []
        self._rows: list[torch.Tensor] = []
        self._flying: list[tuple[Any, torch.Tensor]] = []
        self._extras: dict[int, list[torch.Tensor]] = {}
        self._counts: list[int] = []  # of each tensor, see `Tensors.copies`
        self.replicated = False
        self.passes: RankPasses | None = None

    def send(
        self, tensors: Tensors, reference: Tensors | None = None, root: Tensors | None = None, *, waiting: bool = True
    ) -> None:
        """Start to exchange the slices of these tensors; wait for all but a few, so less memory is held."""
        local, copies = tensors.local, tensors.copies(self.members.shards)
        dtypes = tuple((f"{x.dtype} {copy}", x.element_size()) for x, copy in zip(local, copies, strict=True))
        self.replicated = self.replicated or any(copies)
        self._counts += copies
        new = sections(tuple(x.numel() for x in local), dtypes, self.members.K, len(self.local))
        self.leaves += tensors.leaves()
        self.local += local
        for extra, more in ((REFERENCE, reference), (ROOT, root)):
            if more is not None:
                self._extras.setdefault(extra, []).extend(more.local)
        for section in new:
            for chunk in section.chunks:
                first, last = chunk.own(self.members.me)
                values = self.columns(self.local, section, chunk.start, chunk.stop)
                out = torch.empty((self.members.K, last - first), dtype=values.dtype, device=values.device)
                work = self.members.swap(out.view(-1), values, chunk.widths(self.members.K), last - first)
                self._rows.append(out)
                self._flying.append((work, values))
                if waiting and len(self._flying) > IN_FLIGHT:
                    self.land(1)
        self.cut += new

    def land(self, count: int | None = None) -> None:
        """Wait for the oldest exchanges, all if not told how many."""
        for work, _ in self._flying[:count]:
            self.members.wait(work, "the exchange of slices")
        del self._flying[:count]

    def columns(self, tensors: Sequence[torch.Tensor], section: DtypeSection, first: int, last: int) -> torch.Tensor:
        """Columns of a section as one flat tensor where they can be sent: a view where they lie so already."""
        pieces = [tensors[i].reshape(-1)[start:stop].contiguous() for i, start, stop in section.pieces(first, last)]
        if not pieces:
            return torch.empty(0, dtype=tensors[section.tensors[0]].dtype, device=self.members.device)
        return _join(pieces).to(self.members.device)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What is judged by itself: tensors, small ones together where there are many."""
        return _layers(tuple(self.leaves), self.buffers)

    @property
    def blocks(self) -> tuple[RankBlock, ...]:
        """This rank's slices."""
        return blocks(self.cut, self.members.me)

    def passes_of(self, rank: int, rows: Sequence[torch.Tensor]) -> OwnPasses:
        """The passes of the rank at this position, given everybody's values of its columns.

        What another shard has counted is averaged here, but not measured again.
        """
        own = list(zip(blocks(self.cut, rank), rows, strict=True))
        counted = [(b, row) for b, row in own if self._counts[self.cut[b.section].tensors[0]] < 2]
        whole = self._slices(rank, own)
        return OwnPasses(whole, whole if len(counted) == len(own) else self._slices(rank, counted))

    def _slices(self, rank: int, pairs: Sequence[tuple[RankBlock, torch.Tensor]]) -> Slices:
        device = self.local[0].device
        own = [block for block, _ in pairs]
        slices = Slices(self.members.ids, self.layers, own, [row.to(device) for _, row in pairs])
        for extra, tensors in self._extras.items():
            columns = [self.columns(tensors, self.cut[b.section], *b.chunk.own(rank)) for b in own if b.width]
            slices.put(extra, [column.to(device) for column in columns])
        slices.has_reference = REFERENCE in self._extras
        return slices

    def decide(self) -> tuple[Aggregate, list[torch.Tensor]]:
        """The decision, and this rank's slice of the result, a flat tensor for each block."""
        self.land()
        own = self.passes_of(self.members.me, self._rows)
        self.passes = RankPasses(self.members, own, self.leaves, record=self.record, replicated=self.replicated)
        update = Update(self.members.ids, self.leaves, self.layers, own.slices)
        with torch.autocast(self.local[0].device.type, enabled=False):
            out = run(update, self.pipeline, self.sizes, passes=self.passes)
        self._rows.clear()
        if not self.record:
            self.passes = None  # it holds everybody's slices
        del update, own
        values = iter(out.value)
        empty = {b.section: torch.empty(0, dtype=self.local[self.cut[b.section].tensors[0]].dtype) for b in self.blocks}
        return out, [next(values) if block.width else empty[block.section] for block in self.blocks]

    def gather(self, values: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        """Everybody's slices into the targets, which have the shapes of the tensors."""
        flying: list[tuple[Any, torch.Tensor, RankBlock]] = []
        for block, value in zip(self.blocks, values, strict=True):
            padded = value.to(self.members.device)
            if block.width < block.chunk.width:  # the last ranks may have fewer columns, or none
                padded = torch.cat([padded, padded.new_zeros(block.chunk.width - block.width)])
            out = torch.empty(self.members.K * block.chunk.width, dtype=padded.dtype, device=padded.device)
            flying.append((self.members.collect(out, padded), out, block))
            if len(flying) > IN_FLIGHT:
                self._store(*flying.pop(0), targets)
        for work, out, block in flying:
            self._store(work, out, block, targets)

    def _store(self, work: Any, out: torch.Tensor, block: RankBlock, targets: Sequence[torch.Tensor]) -> None:
        self.members.wait(work, "the gathering of results")
        at = 0
        for i, start, stop in self.cut[block.section].pieces(block.chunk.start, block.chunk.stop):
            put(targets[i], start, stop, out[at : at + stop - start])
            at += stop - start


@lru_cache(maxsize=64)
def _layers(leaves: tuple[Leaf, ...], buffers: Buffers) -> tuple[Layer, ...]:
    return layers_of(leaves, buffers)


def _join(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Flat pieces as one: a view if they lie one after the other in memory, as in a bucket."""
    first, end = pieces[0], pieces[0].storage_offset()
    for piece in pieces:
        if piece.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or piece.storage_offset() != end:
            return torch.cat(list(pieces))
        end += piece.numel()
    return first if len(pieces) == 1 else first.as_strided((end - first.storage_offset(),), (1,))


def put(target: torch.Tensor, start: int, stop: int, values: torch.Tensor) -> None:
    """Write a run of a tensor's flattened values."""
    if target.is_contiguous():
        target.view(-1)[start:stop].copy_(values)
    elif stop - start == target.numel():
        target.copy_(values.view(target.shape))
    else:  # a run of a strided tensor has no view
        at = torch.arange(start, stop, device=target.device)
        target.index_put_(tuple(torch.unravel_index(at, target.shape)), values.to(target.device))
