"""Passes over column blocks in NumPy: a block is read into a thread's scratch, which stays in its cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from honestly.arrays import COMPUTE, LARGEST, Host
from honestly.passes import explain
from honestly.passes.base import Verdict
from honestly.passes.blas import BLOCK, SMALL_PRODUCT, way_for
from honestly.passes.plan import BATCH, Block, blocks, in_order, threads
from honestly.passes.ranking import mean_of_rows, network_of, rank_rows
from honestly.result import Float
from honestly.rules.base import ColumnRule
from honestly.sources import Leaf, Sink, Source
from honestly.sources.matrix import Matrix
from honestly.sources.tree import named

T = TypeVar("T")

# Values of a block whose rows are compared with one another, beyond the cache: an operation has to last longer than it
# takes to hand Python's lock to another thread, or two threads are slower than one. Rows that are copied first count
# twice: once as they come, once as they are ranked.
RANKED_BLOCK, COPIED_BLOCK = 5 << 20, 5 << 19
# Values of a row that OpenBLAS adds up without threads of its own.
LONGEST_DOT = 8192
# Columns of a block of thousands of rows: their cache lines and pages are worth opening.
NARROW = 1024
# Fewer values than this are not worth starting threads for.
WORTH_THREADS = 1 << 20
# Columns looked at to find a central client: a guess that the Gram matrix then confirms or corrects.
SAMPLE_RUNS, SAMPLE_RUN = 4, 512


class HostPasses:
    """All passes on the CPU, whatever array library the clients came from."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.leaves = source.leaves
        self._local = threading.local()

    def sample(self, clients: Sequence[int]) -> Float:
        """Runs of columns at even distances over all coordinates."""
        total = sum(leaf.size for leaf in self.leaves)
        starts = np.unique(np.linspace(0, max(0, total - SAMPLE_RUN), SAMPLE_RUNS).astype(int))
        pieces: list[Float] = []
        offset = 0
        for index, leaf in enumerate(self.leaves):
            for start in starts[(starts >= offset) & (starts < offset + leaf.size)] - offset:
                stop = min(leaf.size, int(start) + SAMPLE_RUN)
                piece = np.empty((len(clients), stop - int(start)), dtype=np.float64)
                self.source.read(index, int(start), stop, clients, piece, None)
                pieces.append(piece)
            offset += leaf.size
        return np.concatenate(pieces, axis=1)

    def between(self, rows: int) -> bool:
        """A client found on a sample costs less here than a median for every coordinate."""
        return False

    def gram(self, clients: Sequence[int], centre: int | None) -> Float:
        """G = sum over blocks of C_b C_b^T: float32 inside a block, float64 across blocks."""
        n = len(clients)
        way = way_for(n)

        def one(block: Block) -> Host:
            used = -(-block.width // way.multiple) * way.multiple
            scratch = self._scratch(way.rows, way.width, block.dtype)[:, :used]
            self._fill(block, clients, scratch[:n, : block.width], centre)
            scratch[:n, block.width :] = 0
            scratch[n:] = 0
            with np.errstate(over="ignore", invalid="ignore"):
                return way.product(scratch)

        total: Float | None = None
        with np.errstate(over="ignore", invalid="ignore"):
            for part in self._run(one, way.width, n, own_threads=way.own_threads):
                total = part.astype(np.float64) if total is None else np.add(total, part, out=total)
            return np.zeros((n, n)) if total is None else way.finish(total, n)

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """`||c_k||^2 - 2 <c_k, wbar> + ||wbar||^2`, each summed over the blocks in float64."""
        n, m = len(clients), len(a)
        width = max(NARROW, BLOCK // n)
        used = np.flatnonzero(a.any(axis=0))
        few = used if len(used) < n else None  # 0 * NaN is not 0, and mixtures of a few clients cost little
        A = _two_rows(a if few is None else a[:, few])

        def one(block: Block) -> tuple[Any, Float, Float]:
            rows = self._direct(block, clients) if centre is None else None
            if rows is None:
                rows = self._scratch(n, width, block.dtype)[:, : block.width]
                self._fill(block, clients, rows, centre)
            means = np.zeros((len(A), block.width), block.dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                _multiply(A.astype(block.dtype), rows if few is None else rows[few], means)
                own, products = _products(rows, means[:m], norms is None)
                return own, products, np.vecdot(means[:m], means[:m])

        total, products, mean_norms = np.zeros(n), np.zeros((n, m)), np.zeros(m)
        with np.errstate(over="ignore", invalid="ignore"):
            for own, product, mean_norm in self._run(one, width, n):
                total += own
                products += product
                mean_norms += mean_norm
            total = total if norms is None else norms
            return np.maximum(total[None, :] - 2 * products.T + mean_norms[:, None], 0), total

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`weights @ X` block by block; clients of weight 0 are not read."""
        used = np.flatnonzero(weights).tolist()
        if not len(used):  # all weight is on a reference of zeros
            used = [0]
        if 2 * len(used) > len(clients) and isinstance(self.source, Matrix):
            used = list(range(len(clients)))  # consecutive rows are multiplied where they lie; 0 * finite is 0
        rows = [clients[j] for j in used]
        n = len(rows)
        A = _two_rows(weights[None, used])
        width = max(4 * NARROW, min(BLOCK // n, SMALL_PRODUCT // (2 * n)))
        sink = self.source.sink()

        def one(block: Block) -> bool:
            values = self._direct(block, rows)
            if values is None:
                values = self._scratch(n, width, block.dtype)[:, : block.width]
                self._fill(block, rows, values, None)
            result = np.zeros((2, block.width), block.dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                _multiply(A.astype(block.dtype), values, result)
                fine = bool(np.abs(result[0]).max() < LARGEST[block.dtype.__name__])
            self._store(block, result[0], sink)
            return fine

        fine = all(list(self._run(one, width, n)))
        return sink.finish(), lambda: fine

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """Sort each column of X (or of `mixing @ X`) and reduce it."""
        n = len(clients)
        m = n if mixing is None else len(mixing)
        network = network_of(rule, m)
        width = max(64, (RANKED_BLOCK if mixing is None and self._all_direct(clients) else COPIED_BLOCK) // (n + m))
        sink = self.source.sink()

        def one(block: Block) -> bool:
            values = self._direct(block, clients)
            if values is None:
                values = self._scratch(n, width, block.dtype)[:, : block.width]
                self._fill(block, clients, values, None)
            with np.errstate(over="ignore", invalid="ignore"):
                fine = _all_finite(values)
                if mixing is not None:
                    values = np.matmul(mixing.astype(block.dtype), values)
                ranked = rank_rows(
                    values, network, lambda rows: self._scratch(rows, width, block.dtype, "ranks")[:, : block.width]
                )
                result = mean_of_rows(ranked) if rule.averages else rule.reduce(np.stack(ranked), np)
                self._store(block, result, sink)
            return fine

        fine = all(list(self._run(one, width, n, batch=1)))
        return sink.finish(), lambda: fine

    def sign_counts(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Float:
        """(m, 3) how many coordinates of `mixing @ X - reference` are positive, zero and negative."""
        n = len(clients)
        width = max(64, BLOCK // n)

        def one(block: Block) -> Float:
            values = self._scratch(n, width, block.dtype)[:, : block.width]
            self._fill(block, clients, values, reference)
            mixed = values if mixing is None else np.matmul(mixing.astype(block.dtype), values)
            positive, negative = (mixed > 0).sum(axis=1), (mixed < 0).sum(axis=1)
            return np.stack([positive, block.width - positive - negative, negative], axis=1).astype(np.float64)

        return sum(self._run(one, width, n), np.zeros((n if mixing is None else len(mixing), 3)))

    def distances(self, clients: Sequence[int], values: Sequence[Any]) -> Float:
        """(k, leaves) squared distances to the result."""
        return explain.on_host(self.source, clients, values, max(64, BLOCK // len(clients)))

    def fault(self, client: int) -> str | None:
        """Read the client's values until one is NaN, infinite or too large."""
        for block in blocks(self.leaves, BLOCK):
            values = np.empty((1, block.width), dtype=block.dtype)
            self._fill(block, [client], values, None)
            wrong = ~(np.abs(values[0]) <= LARGEST[block.dtype.__name__])
            if wrong.any():
                column = int(np.argmax(wrong))
                segment = next(s for s in block.segments if s.offset <= column < s.offset + s.stop - s.start)
                at = segment.start + column - segment.offset
                return describe_fault(float(values[0, column]), self.leaves[segment.leaf], at)
        return None

    def _run(
        self, work: Callable[[Block], T], width: int, rows: int, *, own_threads: bool = True, batch: int = BATCH
    ) -> Iterator[T]:
        total = sum(leaf.size for leaf in self.leaves)
        few = not own_threads or total * rows < WORTH_THREADS
        return in_order(work, blocks(self.leaves, width), 1 if few else threads(), batch)

    def _scratch(self, rows: int, width: int, dtype: type, use: str = "values") -> Host:
        """This thread's own buffer for that use; its first row is zero."""
        held = getattr(self._local, use, None)
        if held is None or held.shape != (rows, width) or held.dtype != dtype:
            held = np.empty((rows, width), dtype=dtype)
            setattr(self._local, use, held)
        held[:1] = 0
        return held

    def _fill(self, block: Block, clients: Sequence[int], out: Host, centre: int | None) -> None:
        for leaf, start, stop, offset in block.segments:
            minus = None
            if centre is not None:
                minus = np.empty((1, stop - start), dtype=block.dtype)
                self.source.read(leaf, start, stop, [centre], minus, None)
                minus = minus[0]
            with np.errstate(over="ignore", invalid="ignore"):
                self.source.read(leaf, start, stop, clients, out[:, offset : offset + stop - start], minus)

    def _direct(self, block: Block, clients: Sequence[int]) -> Host | None:
        """The rows where they lie, if they can be multiplied there."""
        if not isinstance(self.source, Matrix):
            return None
        (segment,) = block.segments
        return self.source.direct(segment.start, segment.stop, clients, block.dtype)

    def _all_direct(self, clients: Sequence[int]) -> bool:
        """Whether no block of these clients has to be copied."""
        if not isinstance(self.source, Matrix):
            return False
        leaf = self.leaves[0]
        return self.source.direct(0, leaf.size, clients, COMPUTE[leaf.spec.dtype]) is not None

    def _store(self, block: Block, values: Any, sink: Sink) -> None:
        for leaf, start, stop, offset in block.segments:
            sink.put(leaf, start, stop, values[offset : offset + stop - start])


def _all_finite(rows: Host) -> bool:
    """False if a value is not finite, or so large that a sum of them is absurd."""
    ones = np.ones(LONGEST_DOT, rows.dtype)
    starts = range(0, rows.shape[1], LONGEST_DOT)
    pieces = [rows[:, start : start + LONGEST_DOT] for start in starts]
    sums = np.stack([np.vecdot(piece, ones[: piece.shape[1]]) for piece in pieces])
    return bool((np.abs(sums) < LARGEST[rows.dtype.name]).all())


def _two_rows(a: Float) -> Float:
    """At least two rows of weights: a matrix product (the small path) and not gemv, which takes threads and a lock."""
    return a if len(a) > 1 else np.concatenate([a, np.zeros_like(a)])


def _multiply(A: Host, rows: Host, out: Host) -> None:
    """`out += A @ rows`, in groups of rows whose product is small."""
    step = min(256, max(1, SMALL_PRODUCT // out.size))
    if out.size * len(rows) <= SMALL_PRODUCT:
        np.matmul(A, rows, out=out)
        return
    for start in range(0, len(rows), step):
        out += np.matmul(A[:, start : start + step], rows[start : start + step])


def _products(rows: Host, means: Host, with_norms: bool) -> tuple[Host | float, Host]:
    """(k,) squared norms, or 0, and (k, m) `rows @ means^T`, in groups of rows whose product is small."""
    if len(means) == 1 and not with_norms:
        return 0.0, np.vecdot(rows, means[0])[:, None]
    norms, products = np.zeros(len(rows), rows.dtype), np.empty((len(rows), len(means)), rows.dtype)
    columns = np.ascontiguousarray(means.T)
    step = max(1, min(256, SMALL_PRODUCT // means.size))
    for start in range(0, len(rows), step):
        group = rows[start : start + step]
        np.matmul(group, columns, out=products[start : start + step])
        if with_norms:  # while the group is in the cache
            np.vecdot(group, group, out=norms[start : start + step])
    return norms, products


def describe_fault(value: float, leaf: Leaf, at: int) -> str:
    """The reason for a client's exclusion: which value, where, and why it cannot be used."""
    where = f"{named(leaf.name)} at flat index {at}"
    if np.isnan(value):
        return f"{where} is NaN"
    if np.isinf(value):
        return f"{where} is infinite ({value})"
    limit = LARGEST[COMPUTE[leaf.spec.dtype].__name__]
    return f"{where} is {value:.6g}: above {limit:g} its square overflows"
