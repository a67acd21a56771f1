"""The same passes where the arrays live: torch, CuPy or JAX on an accelerator, through the array API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_compat as aac
import numpy as np

from honestly import arrays
from honestly.arrays import LARGEST
from honestly.engine.passes import fused
from honestly.engine.passes.coordinates import coordinates, statistics
from honestly.engine.passes.device_columns import WHOLE, DeviceColumns
from honestly.engine.passes.early import EarlyStart
from honestly.engine.passes.gathering import LeafJoin, WaitingProducts, pad_parts
from honestly.engine.passes.host import SAMPLE_RUN, describe_fault
from honestly.engine.passes.parts import Part
from honestly.engine.passes.plan import Block
from honestly.engine.passes.protocol import BETWEEN, Verdict, symmetrize
from honestly.engine.passes.ranking import network_of, rank_device, summary_of
from honestly.result import Float
from honestly.rules.geometry import Coordinates, Statistics
from honestly.rules.rule import ColumnRule
from honestly.sources import Source
from honestly.sources.matrix import Matrix

# Columns of a layer so narrow that it is padded and multiplied together with others: a launch costs more.
NARROW = 1024


class DevicePasses(DeviceColumns):
    """All passes on an accelerator; only K x K matrices and weights cross to the host."""

    def __init__(self, source: Source, early: EarlyStart | None = None) -> None:
        super().__init__(source)
        self._early = early

    def sample(self, clients: Sequence[int]) -> Float:
        """One run in the middle of the largest leaf: a copy to the host costs more than it carries."""
        index = max(range(len(self.leaves)), key=lambda i: self.leaves[i].size)
        leaf = self.leaves[index]
        start = max(0, leaf.size - SAMPLE_RUN) // 2
        run = self.source.block(index, start, min(leaf.size, start + SAMPLE_RUN), clients)
        return arrays.to_host(self._working(run, self._compute(index))).astype(np.float64)

    def free_centre(self, clients: Sequence[int]) -> int | None:
        """The fused kernel holds all values of a column."""
        few, widest = 3 <= len(clients) <= fused.MOST_ROWS, max(leaf.size for leaf in self.leaves)
        return BETWEEN if few and widest >= fused.FEWEST_COLUMNS and fused.available(self._like) else None

    def gram(self, clients: Sequence[int], centre: int | None, only: Sequence[int] | None = None) -> Float:
        """G by layer from full-precision products: TF32 is never used, and blocks are added in float64 on the host."""
        n = len(clients)
        if self._early is not None and centre == BETWEEN and n == len(self.source.ids):
            layers = self._early.gram()
            if layers is not None:
                return layers
        whole = self._no_copies(n)
        if whole and len(self.source.layers) == 1 and self.leaves[0].size < WHOLE:
            product = self._whole_gram(clients, centre)
            if product is not None:
                return product
        total = np.zeros((len(self.source.layers), n, n))
        waiting = WaitingProducts(self._xp, total)
        for slab in self._slabs(n, whole=whole, only=only):
            rows = self._rows(slab, clients)
            middle = centre if centre in (None, BETWEEN) else self._rows(slab, [centre])
            parts = self._parts(slab)
            products = fused.gram(rows, middle, parts)
            if products is None:
                self._products(rows, middle, slab, parts, waiting)
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                for (_, _, layer), product in zip(parts, products, strict=True):
                    total[layer] += product
        waiting.finish()
        return symmetrize(total)

    def _whole_gram(self, clients: Sequence[int], centre: int | None) -> Float | None:
        """The same of one matrix in one launch, which the host need not add up; symmetric by construction."""
        size = self.leaves[0].size
        rows = self.source.block(0, 0, size, clients)
        middle = centre if centre in (None, BETWEEN) else self.source.block(0, 0, size, [centre])
        return fused.gram(rows, middle, [Part(0, size, 0)])

    def _mixing_of(self, clients: Sequence[int]) -> Any | None:
        """`mix` of these clients' rows of a whole matrix, but for the weights."""
        if not self._no_copies(len(clients)) or self.leaves[0].size >= WHOLE:
            return None
        return fused.mixing(self.source.block(0, 0, self.leaves[0].size, clients), fused.flag(self._like))

    def _products(self, rows: Any, middle: Any, slab: Block, parts: Sequence[Part], waiting: WaitingProducts) -> None:
        """`C C^T` of each part by the array library's own operations; narrow ones are padded and multiplied at once."""
        if isinstance(middle, int):  # BETWEEN
            a, b, c = (rows[i : i + 1, ...] for i in (0, rows.shape[0] // 2, rows.shape[0] - 1))
            low, high = self._xp.minimum(a, b), self._xp.maximum(a, b)
            middle = self._xp.maximum(low, self._xp.minimum(high, c))
        with arrays.full_precision(self._like):
            rows = self._centre(rows, middle, slab)
            narrow = [part for part in parts if part.stop - part.start <= NARROW]
            narrow = narrow if len(narrow) > 2 else []
            if narrow:
                padded = pad_parts(self._xp, rows, narrow)
                products = self._xp.matmul(padded, self._xp.permute_dims(padded, (0, 2, 1)))
                waiting.put([part.layer for part in narrow], products)
            for part in parts:
                if part not in narrow:
                    piece = rows if len(parts) == 1 else rows[:, part.start : part.stop]
                    waiting.put([part.layer], self._xp.matmul(piece, piece.T)[None, ...])

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """`||c_k||^2 - 2 <c_k, wbar> + ||wbar||^2`, each summed over the layer's blocks in float64."""
        xp, n, m, L = self._xp, len(clients), len(a), len(self.source.layers)
        total, products, mean_norms = np.zeros((L, n)), np.zeros((L, m, n)), np.zeros((L, m))
        waiting = [WaitingProducts(xp, sums) for sums in (total, products, mean_norms)]
        used = np.flatnonzero(a.any(axis=0)).tolist()
        some = [clients[j] for j in used] if len(used) < n else None  # 0 * NaN is not 0
        with arrays.full_precision(self._like), np.errstate(over="ignore", invalid="ignore"):
            for slab in self._slabs(n):
                middle = None if centre is None else self._rows(slab, [centre])
                rows = self._centre(self._rows(slab, clients), middle, slab)
                mixed = rows if some is None else self._centre(self._rows(slab, some), middle, slab)
                means = xp.matmul(self._to_device(a if some is None else a[:, used], mixed), mixed)
                for start, stop, layer in self._parts(slab):
                    theirs, mean = rows[:, start:stop], means[:, start:stop]
                    if norms is None:
                        waiting[0].put([layer], xp.sum(theirs * theirs, axis=1)[None, ...])
                    waiting[1].put([layer], xp.matmul(mean, theirs.T)[None, ...])
                    waiting[2].put([layer], xp.sum(mean * mean, axis=1)[None, ...])
            for sums in waiting:
                sums.finish()
            total = total if norms is None else norms
            squared = total - 2 * products.transpose(1, 0, 2) + mean_norms.T[:, :, None]
            return np.maximum(squared, 0), total

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`weights @ X` in the working precision, rounded once to the leaf's dtype."""
        by_layer = weights.ndim == 2
        mean = None if self._early is None or by_layer else self._early.mix(weights, clients)
        if mean is not None:
            return [self._round(mean[0], 0)], mean[1]
        used = np.flatnonzero(weights.any(axis=0) if by_layer else weights).tolist() or [0]  # perhaps all is reference
        mixing = self._mixing_of(clients) if not by_layer and 2 * len(used) > len(clients) else None
        if mixing is not None:
            return [self._round(mixing(weights), 0)], mixing.flag.down
        rows, some = clients, weights
        if 2 * len(used) <= len(clients):
            rows, some = [clients[j] for j in used], weights[..., used]
        sink = self._sink()
        flag, largest = fused.flag(self._like), list[Any]()
        for slab in self._slabs(len(rows), whole=self._no_copies(len(rows))):
            block = self._rows(slab, rows)
            parts = self._merge_equal(slab, some) if by_layer else [Part(0, slab.width, 0)]
            table = some if by_layer else some[None, :]
            mean = fused.mix(block, table, parts, flag) if flag else None
            if mean is None:
                mean = self._mean(block, table, parts, slab)
                largest.append(self._xp.max(self._xp.abs(mean)))
            for leaf, start, stop, offset in slab.segments:
                sink.put(leaf, start, stop, self._round(mean[offset : offset + stop - start], leaf))
        return list(sink.finish()), lambda: self._all_fine(largest, flag)

    def _mean(self, rows: Any, weights: Float, parts: Sequence[Part], slab: Block) -> Any:
        """`weights @ rows`, part by part, by the array library's own operations."""
        xp = self._xp
        with arrays.full_precision(self._like):
            rows = self._working(rows, slab.dtype.__name__)
            table = self._to_device(weights, rows)
            means = [
                xp.matmul(table[layer : layer + 1, :], rows[:, start:stop])[0, ...] for start, stop, layer in parts
            ]
            return means[0] if len(means) == 1 else xp.concat(means)

    def _merge_equal(self, slab: Block, weights: Float) -> list[Part]:
        """The parts of a slab, neighbours with equal weights as one."""
        joined: list[Part] = []
        for part in self._parts(slab):
            if joined and np.array_equal(weights[joined[-1].layer], weights[part.layer]):
                joined[-1] = Part(joined[-1].start, part.stop, joined[-1].layer)
            else:
                joined.append(part)
        return joined

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """Sort each column of X (or of `mixing @ X`) on the device and reduce it."""
        xp = self._xp
        m = len(clients) if mixing is None else len(mixing)
        network, summary = network_of(rule, m), summary_of(rule, m)
        sink = self._sink()
        flag, largest = fused.flag(self._like), list[Any]()
        # Rows that are written for each column: those that come out of the kernel, or copies of all of them.
        rows_written = (len(network.wanted) if summary is None else 1) + 2
        for index, start, stop in self._pieces(rows_written if flag and mixing is None else 4 * len(clients)):
            whole = self._uncopied(index, start, stop, clients) if flag and mixing is None else None
            rows = self.source.block(index, start, stop, clients) if whole is None else whole
            if mixing is not None:
                largest.append(self._largest_sum(rows, index))
                rows = self._mixtures(rows, mixing, index)
            chosen = range(m) if whole is None else clients
            ranked = fused.rank(rows, chosen, network, summary, flag) if flag else None
            if ranked is None:
                rows = rows if whole is None else self.source.block(index, start, stop, clients)
                if mixing is None:
                    largest.append(self._largest_sum(rows, index))
                ranked = rank_device(self._working(rows, self._compute(index)), xp, network)
                value = rule.reduce(ranked, xp)
            else:
                value = rule.reduce(ranked, xp) if summary is None else ranked
            sink.put(index, start, stop, self._round(value, index))
        return list(sink.finish()), lambda: self._all_fine(largest, flag)

    def _uncopied(self, index: int, start: int, stop: int, clients: Sequence[int]) -> Any | None:
        """Columns of all clients where they lie, if `clients` are rows of one matrix: then nothing need be copied."""
        K = len(self.source.ids)
        if not isinstance(self.source, Matrix) or max(clients, default=K) >= K:
            return None
        return self.source.block(index, start, stop, range(K))

    def _mixtures(self, rows: Any, mixing: Float, index: int) -> Any:
        """`mixing @ rows` in the working precision."""
        with arrays.full_precision(self._like):
            rows = self._working(rows, self._compute(index))
            return self._xp.matmul(self._to_device(mixing, rows), rows)

    def _largest_sum(self, rows: Any, index: int) -> Any:
        """The largest absolute sum of a row: not finite if one of its values is not."""
        rows = self._working(rows, self._compute(index))
        return self._xp.max(self._xp.abs(self._xp.sum(rows, axis=1)))

    def sign_counts(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Float:
        """(m, 3) how many coordinates of `mixing @ X - reference` are positive, zero and negative."""
        xp = self._xp
        total = np.zeros((len(clients) if mixing is None else len(mixing), 3))
        for slab in self._slabs(len(clients)):
            middle = None if reference is None else self._rows(slab, [reference])
            rows = self._centre(self._rows(slab, clients), middle, slab)
            signs = xp.sign(rows if mixing is None else xp.matmul(self._to_device(mixing, rows), rows))
            for start, stop in self._judged_columns(slab):
                piece = signs[:, start:stop]
                signed = [xp.astype(piece == sign, xp.int32) for sign in (1, 0, -1)]
                counts = [arrays.to_host(xp.sum(one, axis=1, dtype=xp.int32)) for one in signed]
                total += np.stack(counts, axis=1)
        return total

    def coordinates(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Coordinates:
        """Whole updates by judged layer."""
        return coordinates(self.source, clients, reference, mixing)

    def statistics(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Sequence[Statistics]:
        """BatchNorm's running means and variances of the mixtures, by layer."""
        return statistics(self.source, clients, reference, mixing)

    def distances(self, clients: Sequence[int], values: Sequence[Any]) -> Float:
        """(k, leaves) squared distances to the result."""
        total = np.zeros((len(clients), len(self.leaves)))
        for index, start, stop in self._pieces(len(clients)):
            value = self._xp.asarray(values[index][start:stop], device=aac.device(self._like))
            compute = self._compute(index)
            rows = self._working(self.source.block(index, start, stop, clients), compute) - self._working(
                value, compute
            )
            total[:, index] += arrays.to_host(self._xp.sum(rows * rows, axis=1))
        return total

    def fault(self, client: int) -> str | None:
        """The first value that is NaN, infinite or too large."""
        xp = self._xp
        for index, start, stop in self._pieces(1):
            compute = self._compute(index)
            values = self._working(self.source.block(index, start, stop, [client]), compute)[0, ...]
            wrong = xp.logical_not(xp.abs(values) <= LARGEST[compute])
            if bool(xp.any(wrong)):
                at = int(xp.argmax(xp.astype(wrong, xp.int32)))
                return describe_fault(float(values[at]), self.leaves[index], start + at)
        return None

    def _no_copies(self, rows: int) -> bool:
        """Whether the fused kernels will take these rows where they lie."""
        halves = isinstance(self.source, Matrix) and self.leaves[0].spec.dtype != "float64"
        return halves and 2 <= rows <= fused.MOST_ROWS and fused.available(self._like)

    def _all_fine(self, largest: Sequence[Any], flag: Any) -> bool:
        """Whether no block showed a NaN, an infinity or an absurd value; one copy to the host for all blocks."""
        if largest and not bool(self._xp.all(self._xp.stack(largest) < LARGEST["float32"])):
            return False
        return flag is None or flag.down()

    def _sink(self) -> Any:
        """Where `mix` and `reduce` put the result: on the device, unless a subclass says otherwise."""
        return LeafJoin(self._xp, self._like, len(self.leaves))
