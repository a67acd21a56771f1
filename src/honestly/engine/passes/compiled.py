"""The passes by the compiled program: rows in memory are read in place, all others block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from honestly.arrays import COMPUTE, LARGEST, Host, host_dtype
from honestly.engine.passes.blas import mirror
from honestly.engine.passes.plain import WORTH_THREADS, PlainPasses, store
from honestly.engine.passes.plan import Block, blocks, in_order, threads
from honestly.engine.passes.protocol import Verdict
from honestly.engine.passes.ranking import LARGEST_NETWORK, network_of, steps_of, summary_of
from honestly.kernels import rows as program
from honestly.kernels.rows import KINDS, RUN, Cut, Places
from honestly.result import Float
from honestly.rules.rule import ColumnRule
from honestly.sources import Source
from honestly.sources.checkpoints.source import CheckpointSource
from honestly.sources.source import InMemorySource, MemorySink

T = TypeVar("T")

# Values of an item, which one thread works on: half a millisecond, so a thread that the system stops does not
# keep the others waiting for long.
ITEM = 1 << 20
# Columns of an item whose Gram matrix is large: adding it up must cost less than making it.
WIDE_ITEM, MANY_ROWS = 8 * RUN, 128
# Fewer values than this are not worth a compiler's time: NumPy takes some milliseconds for them. A bound on the size
# alone, so the same updates always give the same bits.
WORTH_COMPILING = 1 << 20
# Values that a thread reads at once: 2 MiB in float32, so Python's share of the time is small.
READ = 1 << 19
# Bytes of a cache line: each row of the scratch begins with one.
ALIGNED = 64
LIMITS = (LARGEST["float32"], LARGEST["float64"])


def worth_it(source: Source) -> bool:
    """Whether the program is available and worth using for this source."""
    values = len(source.ids) * sum(leaf.size for leaf in source.leaves)
    return values >= WORTH_COMPILING and program.available()


class CompiledPasses(PlainPasses):
    """Gram matrix, residuals, weighted mean, median and trimmed mean; NumPy does all other ranking."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._wide = [COMPUTE[leaf.spec.dtype] is np.float64 for leaf in source.leaves]
        self._places_of: dict[int, list[tuple[int, int] | None]] = {}

    def gains_by_zero(self, clients: Sequence[int]) -> bool:
        """The program centres rows as it reads them, which costs nothing."""
        return False

    def gram(self, clients: Sequence[int], centre: int | None, only: Sequence[int] | None = None) -> Float:
        """The lower triangles, one item after the other, mirrored."""
        n = len(clients)
        layers = len(self.source.layers)
        rows, middle = self._places(clients), None if centre is None else self._places([centre])
        with np.errstate(over="ignore", invalid="ignore"):
            if rows is not None and (centre is None or middle is not None):
                cut = self._cut(WIDE_ITEM if n > MANY_ROWS else _columns(n), True, only)
                total = program.gram(rows, middle, cut, layers, self._workers(n))
            else:
                total = np.zeros((layers, n, n))

                def process(block: Block) -> tuple[int, Float]:
                    read = _BlockScratch(self, block, clients, centre)
                    return block.layer, program.gram(read.rows, read.centre, read.cut, 1, 1)[0]

                for layer, part in self._each(process, n, WIDE_ITEM if n > MANY_ROWS else RUN, True, only):
                    total[layer] += part
        return mirror(total)

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """`||c_k||^2 - 2 <c_k, wbar> + ||wbar||^2`, each summed over the layer's items in float64."""
        n, m, layers = len(clients), len(a), len(self.source.layers)
        rows, middle = self._places(clients), None if centre is None else self._places([centre])
        with np.errstate(over="ignore", invalid="ignore"):
            if rows is not None and (centre is None or middle is not None):
                cut = self._cut(_columns(n), True)
                own, products, means = program.residuals(a, rows, middle, cut, layers, norms is None, self._workers(n))
            else:
                own, products, means = np.zeros((layers, n)), np.zeros((layers, m, n)), np.zeros((layers, m))

                def process(block: Block) -> tuple[int, tuple[Float, Float, Float]]:
                    read = _BlockScratch(self, block, clients, centre)
                    return block.layer, program.residuals(a, read.rows, read.centre, read.cut, 1, norms is None, 1)

                for layer, parts in self._each(process, n, RUN, True):
                    for sum_, part in zip((own, products, means), parts, strict=True):
                        sum_[layer] += part[0]
            own = own if norms is None else norms
            return np.maximum(own - 2 * products.transpose(1, 0, 2) + means.T[:, :, None], 0), own

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`weights @ X`; rows of weight 0 are not read."""
        by_layer = weights.ndim == 2
        table = np.atleast_2d(weights)
        sink = self.source.sink()
        rows = self._places(clients)
        outs = _outs(sink, len(self.leaves))
        if rows is not None and outs is not None:
            cut = self._cut(_columns(len(clients)), by_layer)
            fine = program.mix(table, rows, outs, cut, LIMITS, self._workers(len(clients)))
            return sink.finish(), lambda: fine

        def process(block: Block) -> bool:
            own = table[block.layer]
            used = np.flatnonzero(own).tolist() or [0]  # all weight may be on a reference of zeros
            read = _BlockScratch(self, block, [clients[j] for j in used], None)
            fine = program.mix(own[None, used], read.rows, read.outs, read.cut, LIMITS, 1)
            store(block, read.result, sink)
            return fine

        used = int(np.count_nonzero(table, axis=1).max(initial=1))
        fine = all(list(self._each(process, max(1, used), RUN, by_layer)))
        return sink.finish(), lambda: fine

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """The mean of some ranks of each column, or of the values nearest to the median."""
        n = len(clients)
        m = n if mixing is None else len(mixing)
        summary = summary_of(rule, m)
        if summary is None or m > LARGEST_NETWORK:
            return super().reduce(rule, mixing, clients)
        steps, wanted, extra = steps_of(network_of(rule, m), m)
        nearest = summary.number if summary.define == "NEAREST" else 0
        network = program.CompiledNetwork(
            np.array(steps, np.int32).reshape(-1, 4), np.array(wanted, np.int32), extra, nearest
        )
        sink = self.source.sink()
        rows, outs = self._places(clients), _outs(sink, len(self.leaves))
        if rows is not None and outs is not None:
            fine = program.rank(network, mixing, rows, outs, self._cut(_columns(n), False), LIMITS, self._workers(n))
            return sink.finish(), lambda: fine

        def process(block: Block) -> bool:
            read = _BlockScratch(self, block, clients, None)
            fine = program.rank(network, mixing, read.rows, read.outs, read.cut, LIMITS, 1)
            store(block, read.result, sink)
            return fine

        fine = all(list(self._each(process, n, RUN, False)))
        return sink.finish(), lambda: fine

    def room(self, nbytes: int) -> tuple[Host, int]:
        """This many bytes of the thread's scratch, and their address; reused memory causes no page faults."""
        room = getattr(self._local, "room", None)
        if room is None or len(room[0]) < nbytes:
            values = np.empty(nbytes, np.uint8)
            room = self._local.room = values, values.__array_interface__["data"][0]
        return room

    def _each(
        self, work: Callable[[Block], T], rows: int, least: int, by_layer: bool, only: Sequence[int] | None = None
    ) -> Iterator[T]:
        """`work` on blocks that are read, of as many columns as stay in the cache."""
        width = max(least, READ // rows // RUN * RUN)
        cut = blocks(self.leaves, width, self.source.layers if by_layer else None, only)
        return in_order(work, cut, self._workers(rows))

    def _workers(self, rows: int) -> int:
        return threads() if rows * sum(leaf.size for leaf in self.leaves) >= WORTH_THREADS else 1

    def _cut(self, columns: int, by_layer: bool, only: Sequence[int] | None = None) -> Cut:
        """All columns in items; those of a layer are not mixed with others if results are wanted by layer."""
        whole = tuple((i, 0, leaf.size) for i, leaf in enumerate(self.leaves))
        spans = [layer.spans for layer in self.source.layers] if by_layer else [whole]
        spans = spans if only is None else [span if i in only else () for i, span in enumerate(spans)]
        return program.cut_into([[(*span, self._wide[span[0]]) for span in each] for each in spans], columns)

    def _places(self, clients: Sequence[int]) -> Places | None:
        """Where these clients' tensors lie; None if one of them has to be read first."""
        if not isinstance(self.source, InMemorySource):
            return None
        columns: list[list[tuple[int, int]]] = []
        for k in clients:
            if k not in self._places_of:
                views = [self.source.flat_view(i, k) for i in range(len(self.leaves))]
                self._places_of[k] = [None if x is None else program.place(x) for x in views]
            known = [place for place in self._places_of[k] if place is not None]
            if len(known) < len(self.leaves):
                return None
            columns.append(known)
        table = np.array(columns, np.int64).reshape(len(clients), len(self.leaves), 2)
        return Places(np.ascontiguousarray(table[:, :, 0].T), np.ascontiguousarray(table[:, :, 1].T.astype(np.int8)))


class _BlockScratch:
    """One block's values in this thread's scratch: each run of columns is a tensor to the program."""

    def __init__(self, passes: CompiledPasses, block: Block, clients: Sequence[int], centre: int | None) -> None:
        wanted = [*clients] if centre is None or centre in clients else [*clients, centre]
        self._source, self._dtype = passes.source, block.dtype
        room = (len(wanted) + 1) * (block.width * np.dtype(block.dtype).itemsize + ALIGNED * len(block.segments))
        (self._room, self._at), self._used = passes.room(room), 0
        table = np.array(
            [list(self._read(leaf, start, stop, wanted)) for leaf, start, stop, _ in block.segments], np.int64
        )
        n = len(clients)
        self.rows = _table(table[:, :n])
        self.centre = None if centre is None else _table(table[:, wanted.index(centre)][:, None])
        self.result, at = self._take(block.width, np.dtype(block.dtype))
        self.outs = Places(
            at + self.result.itemsize * np.array([[segment.offset] for segment in block.segments], np.int64),
            np.full((len(block.segments), 1), KINDS[self.result.dtype], np.int8),
        )
        runs = [(s, 0, stop - start) for s, (_, start, stop, _) in enumerate(block.segments)]
        wide = block.dtype is np.float64
        self.cut = Cut(np.array(runs, np.int64), np.array([[0, len(runs), 0, int(wide)]], np.int64))

    def _read(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Place and kind of each client's values: as its file holds them where that is enough, else in the working
        precision."""
        source, dtype = self._source, np.dtype(self._dtype)
        stored = host_dtype(source.leaves[leaf].spec)
        files = source if isinstance(source, CheckpointSource) else None
        for k in clients:
            if files is not None and files.stores_as_agreed(leaf, k):
                values, at = self._take(stop - start, stored)
                files.raw(leaf, start, stop, k, values)
                yield at, KINDS[stored]
            else:
                values, at = self._take(stop - start, dtype)
                source.read(leaf, start, stop, [k], values[None], None)
                yield at, KINDS[dtype]

    def _take(self, count: int, dtype: np.dtype[Any]) -> tuple[Host, int]:
        """The next values of the scratch, and where they are."""
        size, used = count * dtype.itemsize, self._used
        self._used += -(-size // ALIGNED) * ALIGNED
        return self._room[used : used + size].view(dtype), self._at + used


def _table(places: Any) -> Places:
    return Places(np.ascontiguousarray(places[..., 0]), np.ascontiguousarray(places[..., 1].astype(np.int8)))


def _columns(rows: int) -> int:
    """Columns of an item."""
    return max(RUN, ITEM // rows // RUN * RUN)


def _outs(sink: Any, leaves: int) -> Places | None:
    """Where the result's tensors lie, if it is kept in memory."""
    if not isinstance(sink, MemorySink):
        return None
    places = [program.place(sink.flat_view(i)) for i in range(leaves)]
    return _table(np.array(places, np.int64).reshape(leaves, 1, 2))
