"""The passes over column blocks in NumPy: a block is read into a thread's scratch, which stays in its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from honestly.arrays import COMPUTE, LARGEST, Host, host_dtype
from honestly.engine.passes.blas import BLOCK, MOST_VECTOR_ROWS, SMALL_PRODUCT, mirror, way_for, weigh_rows
from honestly.engine.passes.keys import are_finite, from_keys
from honestly.engine.passes.plan import BATCH, Block, blocks, in_order, threads
from honestly.engine.passes.protocol import Verdict
from honestly.engine.passes.ranking import network_of, rank_rows
from honestly.engine.passes.reading import BlockReader
from honestly.result import Float
from honestly.rules.rule import ColumnRule
from honestly.sources import Sink
from honestly.sources.matrix import Matrix
from honestly.sources.source import MemorySink

T = TypeVar("T")

# Bytes of the rows that are compared with one another and of the ranked ones. An operation has to last longer than it
# takes to hand Python's lock to another thread, or two threads are slower than one; but the blocks of all threads
# should fit in the last cache.
RANKED = 10 << 20
# Values of a row that every BLAS adds up in the calling thread, at once.
LONGEST_DOT = 2048
# Columns of a block of thousands of rows: their cache lines and pages are worth opening.
NARROW = 1024
# Fewer values than this are not worth starting threads for.
WORTH_THREADS = 1 << 20
# Threads get blocks that are so many times as long, which are still in the last cache when they are used again: they
# wait for Python's lock less often. And columns of rows that are read once, where they lie.
LONGER, STREAMED = 4, 1 << 16


class PlainPasses(BlockReader):
    """Products, means and ranks by NumPy, on any source that the host can read."""

    def gram(self, clients: Sequence[int], centre: int | None, only: Sequence[int] | None = None) -> Float:
        """G_l = sum over the layer's blocks of C_b C_b^T: float32 inside a block, float64 across blocks."""
        n = len(clients)
        way = way_for(n)
        width = way.width * (LONGER if way.own_threads and self._worth_threads(n) else 1)

        def process(block: Block) -> tuple[int, Host]:
            rows = self.direct(block, clients) if centre is None and way.in_place is not None else None
            if rows is not None and way.in_place is not None:
                with np.errstate(over="ignore", invalid="ignore"):
                    return block.layer, way.in_place(rows)
            used = -(-block.width // way.multiple) * way.multiple
            scratch = self.scratch(way.rows, width, block.dtype)[:, :used]
            self.fill(block, clients, scratch[:n, : block.width], centre)
            scratch[:n, block.width :] = 0
            scratch[n:] = 0
            with np.errstate(over="ignore", invalid="ignore"):
                return block.layer, way.product(scratch)

        grams = np.zeros((len(self.source.layers), n, n))
        with np.errstate(over="ignore", invalid="ignore"):
            for layer, part in self.run(process, width, n, own_threads=way.own_threads, by_layer=True, only=only):
                grams[layer] += part[:n, :n]
            return mirror(grams)

    def gains_by_zero(self, clients: Sequence[int]) -> bool:
        """Whether the Gram matrix of many values takes less about zero: rows are multiplied where they lie, or 16-bit
        values, which are not widened and subtracted at once, are only widened."""
        n = len(clients)
        if n < 3 or not self._worth_threads(n):
            return False
        return self._value_bytes(in_place=True) == 2 or (way_for(n).in_place is not None and self.all_direct(clients))

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """`||c_k||^2 - 2 <c_k, wbar> + ||wbar||^2`, each summed over the layer's blocks in float64."""
        n, m, L = len(clients), len(a), len(self.source.layers)
        width = max(NARROW, BLOCK // n)
        used = np.flatnonzero(a.any(axis=0))
        few = used if len(used) < n else None  # 0 * NaN is not 0, and mixtures of a few clients cost little
        A = _two_rows(a if few is None else a[:, few])

        def process(block: Block) -> tuple[int, Any, Float, Float]:
            rows = self.direct(block, clients) if centre is None else None
            if rows is None:
                rows = self.scratch(n, width, block.dtype)[:, : block.width]
                self.fill(block, clients, rows, centre)
            means = np.zeros((len(A), block.width), block.dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                multiply(A.astype(block.dtype), rows if few is None else rows[few], means)
                own, products = _products(rows, means[:m], norms is None)
                return block.layer, own, products, np.vecdot(means[:m], means[:m])

        total, products, mean_norms = np.zeros((L, n)), np.zeros((L, n, m)), np.zeros((L, m))
        with np.errstate(over="ignore", invalid="ignore"):
            for layer, own, product, mean_norm in self.run(process, width, n, by_layer=True):
                total[layer] += own
                products[layer] += product
                mean_norms[layer] += mean_norm
            total = total if norms is None else norms
            return np.maximum(total - 2 * products.transpose(2, 0, 1) + mean_norms.T[:, :, None], 0), total

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`weights @ X` block by block; clients of weight 0 are not read."""
        by_layer = weights.ndim == 2
        used = np.flatnonzero(weights.any(axis=0) if by_layer else weights).tolist()
        if not len(used):  # all weight is on a reference of zeros
            used = [0]
        if 2 * len(used) > len(clients) and isinstance(self.source, Matrix):
            used = list(range(len(clients)))  # consecutive rows are multiplied where they lie; 0 * finite is 0
        rows = [clients[j] for j in used]
        n = len(rows)
        few = n <= MOST_VECTOR_ROWS
        A = [row[used] if few else _two_rows(row[None, used]) for row in np.atleast_2d(weights)]
        width = max(4 * NARROW, BLOCK // n if few else min(BLOCK // n, SMALL_PRODUCT // (2 * n)))
        if few and self._worth_threads(n):
            width = max(width, STREAMED if self.all_direct(rows) else LONGER * width)
        sink = self.source.sink()

        def process(block: Block) -> bool:
            values = self.direct(block, rows)
            if values is None:
                values = self.scratch(n, width, block.dtype)[:, : block.width]
                self.fill(block, rows, values, None)
            a, limit = A[block.layer].astype(block.dtype), LARGEST[block.dtype.__name__]
            place = _place(block, sink)
            result = np.empty(block.width, block.dtype) if place is None else place
            with np.errstate(over="ignore", invalid="ignore"):
                if few:
                    weigh_rows(a, values, result)
                else:
                    both = np.zeros((2, block.width), block.dtype)
                    multiply(a, values, both)
                    result[:] = both[0]
                fine = bool(result.max() < limit and result.min() > -limit)
            if place is None:
                store(block, result, sink)
            return fine

        fine = all(list(self.run(process, width, n, by_layer=by_layer)))
        return sink.finish(), lambda: fine

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """Sort each column of X (or of `mixing @ X`) and reduce it."""
        n = len(clients)
        m = n if mixing is None else len(mixing)
        network = network_of(rule, m)
        in_place = mixing is None and self._worth_threads(n) and self.in_place(clients)
        width = max(64, RANKED // ((n + m) * self._value_bytes(in_place)))
        sink = self.source.sink()

        def process(block: Block) -> bool:
            def scratch(rows: int, dtype: Any = block.dtype) -> Host:
                return self.scratch(rows, width, dtype, "ranks")[:, : block.width]

            with np.errstate(over="ignore", invalid="ignore"):
                narrow = self.keys(block, clients, width) if in_place else None
                if narrow is not None:
                    keys, kind = narrow
                    fine = are_finite(keys, kind)
                    ranked = from_keys(rank_rows(keys, network, lambda rows: scratch(rows, np.int16)), kind)
                else:
                    values = self.direct(block, clients)
                    if values is None and in_place:
                        values = self.rows(block, clients, block.dtype)
                    if values is None:
                        values = self.scratch(n, width, block.dtype)[:, : block.width]
                        self.fill(block, clients, values, None)
                    fine = all_finite(values)
                    if mixing is not None:
                        mixed = np.zeros((m, block.width), block.dtype)
                        multiply(mixing.astype(block.dtype), np.asarray(values), mixed)
                        values = mixed
                    ranked = rank_rows(values, network, scratch)
                result = rule.reduce(ranked if rule.averages else np.stack(ranked), np)
                store(block, result, sink)
            return fine

        fine = all(list(self.run(process, width, n, batch=1)))
        return sink.finish(), lambda: fine

    def run(
        self,
        work: Callable[[Block], T],
        width: int,
        rows: int,
        *,
        own_threads: bool = True,
        batch: int = BATCH,
        by_layer: bool = False,
        only: Sequence[int] | None = None,
    ) -> Iterator[T]:
        """`work` on every block, on several threads if that is worth it; the results in order."""
        cut = blocks(self.leaves, width, self.source.layers if by_layer else None, only)
        return in_order(work, cut, threads() if own_threads and self._worth_threads(rows) else 1, batch)

    def _value_bytes(self, in_place: bool) -> int:
        """The most bytes that a value takes in a block, where it lies or as it is worked on."""
        specs = [leaf.spec for leaf in self.leaves]
        dtypes = [host_dtype(spec) if in_place else np.dtype(COMPUTE[spec.dtype]) for spec in specs]
        return max((dtype.itemsize for dtype in dtypes), default=1)

    def _worth_threads(self, rows: int) -> bool:
        return rows * sum(leaf.size for leaf in self.leaves) >= WORTH_THREADS


def store(block: Block, values: Host, sink: Sink) -> None:
    """Put the block's result where its columns belong."""
    for leaf, start, stop, offset in block.segments:
        sink.put(leaf, start, stop, values[offset : offset + stop - start])


def _place(block: Block, sink: Sink) -> Host | None:
    """Where the block's result belongs, if it can be computed there."""
    if not isinstance(sink, MemorySink) or len(block.segments) != 1:
        return None
    leaf, start, stop, _ = block.segments[0]
    values = sink.flat_view(leaf)
    return values[start:stop] if values.dtype == block.dtype else None


def all_finite(rows: Host | list[Host]) -> bool:
    """False if a value is not finite, or so large that sums would overflow.

    By products of short runs with ones: meanwhile other threads can work, which they cannot beside `vecdot`.
    """
    limit, ones = LARGEST[rows[0].dtype.name], np.ones((LONGEST_DOT, 1), rows[0].dtype)
    for part in rows if isinstance(rows, list) else [rows]:
        whole = part.shape[-1] // LONGEST_DOT * LONGEST_DOT
        sums = np.matmul(part[..., :whole].reshape(*part.shape[:-1], -1, 1, LONGEST_DOT), ones)
        rest = np.matmul(part[..., None, whole:], ones[: part.shape[-1] - whole])
        if not ((np.abs(sums) < limit).all() and (np.abs(rest) < limit).all()):
            return False
    return True


def _two_rows(a: Float) -> Float:
    """At least two rows of weights: a matrix product and not gemv, which takes threads and a lock."""
    return a if len(a) > 1 else np.concatenate([a, np.zeros_like(a)])


def multiply(A: Host, rows: Host, out: Host) -> None:
    """`out += A @ rows`, in pieces whose product is small."""
    if out.size * len(rows) <= SMALL_PRODUCT:
        np.matmul(A, rows, out=out)
        return
    width = max(256, SMALL_PRODUCT // (len(out) * min(len(rows), 256)))
    step = max(1, min(256, SMALL_PRODUCT // (len(out) * width)))
    for at in range(0, out.shape[1], width):
        for start in range(0, len(rows), step):
            out[:, at : at + width] += np.matmul(
                A[:, start : start + step], rows[start : start + step, at : at + width]
            )


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
