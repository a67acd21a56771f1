"""The same passes where the arrays live: torch, CuPy or JAX on an accelerator, through the array API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import array_api_compat as aac
import numpy as np

from honestly import arrays
from honestly.arrays import COMPUTE, LARGEST
from honestly.passes import fused
from honestly.passes.base import BETWEEN, Verdict
from honestly.passes.host import SAMPLE_RUN, describe_fault
from honestly.passes.plan import blocks
from honestly.passes.ranking import network_of, rank_device
from honestly.result import Float
from honestly.rules.base import ColumnRule
from honestly.sources import Source
from honestly.sources.matrix import Matrix

# Values of one centred block: 256 MiB in float32, small beside the clients and large beside a kernel's launch.
BLOCK = 1 << 26
# Columns of one launch where nothing is copied.
WHOLE = 1 << 30


class DevicePasses:
    """All passes on an accelerator; only K x K matrices and weights cross to the host."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.leaves = source.leaves
        if isinstance(source, Matrix):
            self._like = source.block(0, 0, self.leaves[0].size, range(len(source.ids)))
        else:
            usable = (k for k in range(len(source.ids)) if k not in source.refused)
            self._like = source.block(0, 0, 1, [next(usable, len(source.ids))])
        self._ready: tuple[Sequence[int], Any] | None = None  # clients, and `mix` of theirs but for the weights

    @cached_property
    def _xp(self) -> Any:
        return arrays.namespace(self._like)

    def sample(self, clients: Sequence[int]) -> Float:
        """One run in the middle of the largest leaf: a copy to the host costs more than it carries."""
        index = max(range(len(self.leaves)), key=lambda i: self.leaves[i].size)
        leaf = self.leaves[index]
        start = max(0, leaf.size - SAMPLE_RUN) // 2
        run = self.source.block(index, start, min(leaf.size, start + SAMPLE_RUN), clients)
        return arrays.to_host(self._working(run, COMPUTE[leaf.spec.dtype].__name__)).astype(np.float64)

    def between(self, rows: int) -> bool:
        """The fused kernel holds all values of a column."""
        widest = max(leaf.size for leaf in self.leaves)
        return 3 <= rows <= fused.MOST_ROWS and widest >= fused.FEWEST_COLUMNS and fused.available(self._like)

    def gram(self, clients: Sequence[int], centre: int | None) -> Float:
        """G from full-precision products: TF32 is never used, and blocks are added in float64 on the host."""
        n = len(clients)
        total: Float | None = None
        whole = self._no_copies(n)
        for index, start, stop in self._pieces(n, whole=whole):
            rows = self.source.block(index, start, stop, clients)
            middle = centre if centre in (None, BETWEEN) else self.source.block(index, start, stop, [centre])
            ahead = whole and stop - start == self.leaves[0].size
            product = fused.gram(rows, middle, partial(self._make_ready, rows, clients) if ahead else None)
            if product is None:
                product = self._product(rows, middle, index)
            with np.errstate(over="ignore", invalid="ignore"):
                total = product if total is None else total + product
        return np.zeros((n, n)) if total is None else total

    def _make_ready(self, rows: Any, clients: Sequence[int]) -> None:
        """Most often the clients that are measured are those that are mixed then; the device need not wait for us."""
        ready = fused.mixing(rows, fused.flag(self._like))
        self._ready = None if ready is None else (list(clients), ready)

    def _product(self, rows: Any, middle: Any, index: int) -> Float:
        """`C C^T` by the array library's own operations."""
        if isinstance(middle, int):  # BETWEEN
            a, b, c = (rows[i : i + 1, ...] for i in (0, rows.shape[0] // 2, rows.shape[0] - 1))
            low, high = self._xp.minimum(a, b), self._xp.maximum(a, b)
            middle = self._xp.maximum(low, self._xp.minimum(high, c))
        with arrays.full_precision(self._like):
            rows = self._centred(rows, middle, index)
            return arrays.to_host(self._xp.matmul(rows, rows.T)).astype(np.float64)

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """`||c_k||^2 - 2 <c_k, wbar> + ||wbar||^2`, each summed over the blocks in float64."""
        xp, n, m = self._xp, len(clients), len(a)
        total, products, mean_norms = np.zeros(n), np.zeros((m, n)), np.zeros(m)
        used = np.flatnonzero(a.any(axis=0)).tolist()
        parts = [clients[j] for j in used] if len(used) < n else None  # 0 * NaN is not 0
        with arrays.full_precision(self._like), np.errstate(over="ignore", invalid="ignore"):
            for index, start, stop in self._pieces(n):
                middle = None if centre is None else self.source.block(index, start, stop, [centre])
                rows = self._centred(self.source.block(index, start, stop, clients), middle, index)
                mixed = rows
                if parts is not None:
                    mixed = self._centred(self.source.block(index, start, stop, parts), middle, index)
                means = xp.matmul(self._moved(a if parts is None else a[:, used], mixed), mixed)
                if norms is None:
                    total += arrays.to_host(xp.sum(rows * rows, axis=1))
                products += arrays.to_host(xp.matmul(means, rows.T))
                mean_norms += arrays.to_host(xp.sum(means * means, axis=1))
            total = total if norms is None else norms
            return np.maximum(total[None, :] - 2 * products + mean_norms[:, None], 0), total

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`weights @ X` in the working precision, rounded once to the leaf's dtype."""
        used = np.flatnonzero(weights).tolist() or [0]  # all weight may be on a reference of zeros
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] == clients and 2 * len(used) > len(clients):
            mixing = ready[1]
            return [self._rounded(mixing(weights), 0)], mixing.flag.down
        if 2 * len(used) > len(clients):
            rows, kept = clients, weights
        else:
            rows, kept = [clients[j] for j in used], weights[used]
        sink = self._sink()
        flag, largest = fused.flag(self._like), list[Any]()
        for index, start, stop in self._pieces(len(rows), whole=self._no_copies(len(rows))):
            block = self.source.block(index, start, stop, rows)
            mean = fused.mix(block, kept, flag) if flag else None
            if mean is None:
                mean, size = self._mean(block, kept, index)
                largest.append(size)
            sink.put(index, start, stop, self._rounded(mean, index))
        return list(sink.finish()), lambda: self._all_fine(largest, flag)

    def _mean(self, rows: Any, weights: Float, index: int) -> tuple[Any, Any]:
        """`weights @ rows` and its largest absolute value by the array library's own operations."""
        xp = self._xp
        with arrays.full_precision(self._like):
            rows = self._working(rows, COMPUTE[self.leaves[index].spec.dtype].__name__)
            mean = xp.matmul(self._moved(weights[None, :], rows), rows)[0, ...]
            return mean, xp.max(xp.abs(mean))

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """Sort each column of X (or of `mixing @ X`) on the device and reduce it."""
        xp = self._xp
        m = len(clients) if mixing is None else len(mixing)
        network = network_of(rule, m)
        self._ready = None  # nothing will be mixed
        sink = self._sink()
        flag, largest = fused.flag(self._like), list[Any]()
        # Rows that are written for each column: those that come out of the kernel, or copies of all of them.
        written = (1 if rule.averages else len(network.wanted)) + 2
        for index, start, stop in self._pieces(written if flag and mixing is None else 4 * len(clients)):
            rows = self.source.block(index, start, stop, clients)
            if mixing is not None:
                largest.append(self._largest_sum(rows, index))
                rows = self._mixtures(rows, mixing, index)
            ranked = fused.rank(rows, network, rule.averages, flag) if flag else None
            if ranked is None:
                if mixing is None:
                    largest.append(self._largest_sum(rows, index))
                ranked = rank_device(self._working(rows, COMPUTE[self.leaves[index].spec.dtype].__name__), xp, network)
                value = rule.reduce(ranked, xp)
            else:
                value = ranked if rule.averages else rule.reduce(ranked, xp)
            sink.put(index, start, stop, self._rounded(value, index))
        return list(sink.finish()), lambda: self._all_fine(largest, flag)

    def _mixtures(self, rows: Any, mixing: Float, index: int) -> Any:
        """`mixing @ rows` in the working precision."""
        with arrays.full_precision(self._like):
            rows = self._working(rows, COMPUTE[self.leaves[index].spec.dtype].__name__)
            return self._xp.matmul(self._moved(mixing, rows), rows)

    def _largest_sum(self, rows: Any, index: int) -> Any:
        """The largest absolute sum of a row: not finite if one of its values is not."""
        rows = self._working(rows, COMPUTE[self.leaves[index].spec.dtype].__name__)
        return self._xp.max(self._xp.abs(self._xp.sum(rows, axis=1)))

    def sign_counts(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Float:
        """(m, 3) how many coordinates of `mixing @ X - reference` are positive, zero and negative."""
        xp = self._xp
        total = np.zeros((len(clients) if mixing is None else len(mixing), 3))
        for index, start, stop in self._pieces(len(clients)):
            middle = None if reference is None else self.source.block(index, start, stop, [reference])
            rows = self._centred(self.source.block(index, start, stop, clients), middle, index)
            signs = xp.sign(rows if mixing is None else xp.matmul(self._moved(mixing, rows), rows))
            counts = [arrays.to_host(xp.sum(xp.astype(signs == s, xp.int64), axis=1)) for s in (1, 0, -1)]
            total += np.stack(counts, axis=1)
        return total

    def distances(self, clients: Sequence[int], values: Sequence[Any]) -> Float:
        """(k, leaves) squared distances to the result."""
        total = np.zeros((len(clients), len(self.leaves)))
        for index, start, stop in self._pieces(len(clients)):
            value = self._xp.asarray(values[index][start:stop], device=aac.device(self._like))
            rows = self._centred(self.source.block(index, start, stop, clients), value, index)
            total[:, index] += arrays.to_host(self._xp.sum(rows * rows, axis=1))
        return total

    def fault(self, client: int) -> str | None:
        """The first value that is NaN, infinite or too large."""
        xp = self._xp
        for index, start, stop in self._pieces(1):
            compute = COMPUTE[self.leaves[index].spec.dtype].__name__
            values = self._working(self.source.block(index, start, stop, [client]), compute)[0, ...]
            wrong = xp.logical_not(xp.abs(values) <= LARGEST[compute])
            if bool(xp.any(wrong)):
                at = int(xp.argmax(xp.astype(wrong, xp.int32)))
                return describe_fault(float(values[at]), self.leaves[index], start + at)
        return None

    def _pieces(self, rows: int, *, whole: bool = False) -> Iterator[tuple[int, int, int]]:
        """(leaf, start, stop) of blocks that a copy of fits easily; whole leaves where nothing is copied."""
        for block in blocks(self.leaves, WHOLE if whole else max(1024, BLOCK // rows)):
            for segment in block.segments:
                yield segment.leaf, segment.start, segment.stop

    def _no_copies(self, rows: int) -> bool:
        """Whether the fused kernels will take these rows where they lie."""
        halves = isinstance(self.source, Matrix) and self.leaves[0].spec.dtype != "float64"
        return halves and 2 <= rows <= fused.MOST_ROWS and fused.available(self._like)

    def _working(self, values: Any, dtype: str) -> Any:
        if str(values.dtype).endswith(f".{dtype}"):  # most often; the array API takes its time to do nothing
            return values
        return self._xp.astype(values, getattr(self._xp, dtype), copy=False)

    def _centred(self, rows: Any, middle: Any, leaf: int) -> Any:
        compute = COMPUTE[self.leaves[leaf].spec.dtype].__name__
        rows = self._working(rows, compute)
        return rows if middle is None else rows - self._working(middle, compute)

    def _moved(self, weights: Float, rows: Any) -> Any:
        return self._xp.asarray(weights, dtype=rows.dtype, device=aac.device(rows))

    def _all_fine(self, largest: Sequence[Any], flag: Any) -> bool:
        """Whether no block showed a NaN, an infinity or an absurd value; one copy to the host for all blocks."""
        if largest and not bool(self._xp.all(self._xp.stack(largest) < LARGEST["float32"])):
            return False
        return flag is None or flag.down()

    def _rounded(self, values: Any, leaf: int) -> Any:
        return self._working(values, self.leaves[leaf].spec.dtype)

    def _sink(self) -> Any:
        """Where `mix` and `reduce` put the result: on the device, unless a subclass says otherwise."""
        return _Joined(self._xp, self._like, len(self.leaves))


class _Joined:
    """The pieces of each leaf, which come in order, as one flat device array."""

    def __init__(self, xp: Any, like: Any, leaves: int) -> None:
        self._xp, self._like = xp, like
        self._parts: list[list[Any]] = [[] for _ in range(leaves)]

    def put(self, leaf: int, start: int, stop: int, values: Any) -> None:
        """Keep a piece."""
        self._parts[leaf].append(values)

    def finish(self) -> list[Any]:
        """One array per leaf; of a leaf without values, an empty one."""
        return [p[0] if len(p) == 1 else self._xp.concat(p) if p else self._like[0, :0] for p in self._parts]
