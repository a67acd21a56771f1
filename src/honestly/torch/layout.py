"""Where each value of an update goes: tensors laid end to end, cut into chunks, a slice of each chunk for every rank.

A *section* is a run of tensors of one dtype that are sent together. It travels in *chunks*, so the memory to send
from is small beside the update, and so that every rank has a share of every layer. Rank j keeps slice j of each chunk:
its *blocks*, of one column for each value and one row for each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

#: Bytes of one rank's slice of a chunk.
CHUNK = 1 << 20


class Chunk(NamedTuple):
    """Columns start..stop of a section; rank j has `width` of them from `start + j * width` on, the last ones fewer."""

    start: int
    stop: int
    width: int

    def own(self, rank: int) -> tuple[int, int]:
        """First and last column of a rank's slice; they may be the same."""
        first = min(self.stop, self.start + rank * self.width)
        return first, min(self.stop, first + self.width)

    def widths(self, ranks: int) -> list[int]:
        """How many columns each rank has."""
        return [last - first for first, last in (self.own(rank) for rank in range(ranks))]


@dataclass(frozen=True)
class DtypeSection:
    """Tensors of one dtype, laid end to end.

    Attributes:
        tensors: their positions in the list.
        starts: where each begins, and at the end how many columns there are.
        chunks: how they are sent.
    """

    tensors: tuple[int, ...]
    starts: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def size(self) -> int:
        """Number of columns."""
        return self.starts[-1]

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(tensor, start, stop) of what lies in columns first..last, in order."""
        for i, tensor in enumerate(self.tensors):
            start, stop = max(first, self.starts[i]), min(last, self.starts[i + 1])
            if start < stop:
                yield tensor, start - self.starts[i], stop - self.starts[i]


@lru_cache(maxsize=64)
def sections(
    sizes: tuple[int, ...], dtypes: tuple[tuple[str, int], ...], ranks: int, first: int = 0
) -> tuple[DtypeSection, ...]:
    """One section for each dtype, (name, bytes), in the order in which they come; tensors count from `first`."""
    by_dtype: dict[tuple[str, int], list[int]] = {}
    for i, dtype in enumerate(dtypes):
        by_dtype.setdefault(dtype, []).append(i)
    sections: list[DtypeSection] = []
    for (_, itemsize), tensors in by_dtype.items():
        starts = [0]
        for i in tensors:
            starts.append(starts[-1] + sizes[i])
        step = ranks * max(1, CHUNK // itemsize)
        chunks = [_chunk(start, min(starts[-1], start + step), ranks) for start in range(0, starts[-1], step)]
        sections.append(DtypeSection(tuple(first + i for i in tensors), tuple(starts), tuple(chunks)))
    return tuple(sections)


def _chunk(start: int, stop: int, ranks: int) -> Chunk:
    return Chunk(start, stop, -(-(stop - start) // ranks))


class RankBlock(NamedTuple):
    """A rank's slice of a chunk, of `width` columns: what it covers of each tensor is in `pieces`."""

    section: int
    chunk: Chunk
    width: int
    pieces: tuple[tuple[int, int, int], ...]


def blocks(cut: Sequence[DtypeSection], rank: int) -> tuple[RankBlock, ...]:
    """All slices of a rank, in the order in which they are sent."""
    return tuple(
        RankBlock(i, chunk, last - first, tuple(section.pieces(first, last)))
        for i, section in enumerate(cut)
        for chunk in section.chunks
        for first, last in (chunk.own(rank),)
    )
