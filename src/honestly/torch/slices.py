"""What one rank holds of everybody's update, and the update as the engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from honestly import arrays
from honestly.arrays import ArraySpec, Host
from honestly.result import ClientId
from honestly.sources import Layer, Leaf
from honestly.sources.source import InMemorySource, MemorySink
from honestly.torch.layout import RankBlock

#: Columns whose few rows stay in a core's cache.
IN_CACHE = 1 << 15
#: Positions beyond the K ranks: the reference, the root, and the median of three ranks, which is made when asked for.
REFERENCE, ROOT, MIDDLE = 0, 1, 2


class Slices(InMemorySource):
    """This rank's blocks, (K, width) each: a source for the engine's passes.

    Attributes:
        leaves: one for each block that is not empty.
        pieces: what it covers, (tensor, start, stop), of each leaf.
        layers: what the blocks hold of each layer, which may be nothing.
    """

    def __init__(
        self,
        ids: Sequence[ClientId],
        layers: Sequence[Layer],
        blocks: Sequence[RankBlock],
        rows: Sequence[torch.Tensor],
    ) -> None:
        filled = [(block, row) for block, row in zip(blocks, rows, strict=True) if block.width]
        self.ids = tuple(ids)
        self.refused: dict[int, str] = {}
        self.integers: tuple[Leaf, ...] = ()
        self.has_reference = False
        self.leaves = tuple(Leaf(f"[{i}]", arrays.spec(row[0])) for i, (_, row) in enumerate(filled))
        self.pieces = tuple(block.pieces for block, _ in filled)
        self.layers = local_layers(layers, self.pieces)
        self.rows = [row for _, row in filled]
        self.on_host = all(row.device.type == "cpu" for row in self.rows)
        self._seen: list[Any] = [arrays.host_view(row) if self.on_host else row for row in self.rows]
        self._extras: dict[int, list[Any]] = {}

    @property
    def size(self) -> int:
        """Number of columns."""
        return sum(leaf.size for leaf in self.leaves)

    def put(self, extra: int, rows: Sequence[torch.Tensor]) -> None:
        """Set one of the extra rows, a flat tensor for each leaf."""
        self._extras[extra] = [arrays.host_view(row[None]) if self.on_host else row[None] for row in rows]

    def put_middle(self, clients: Sequence[int]) -> None:
        """Each column's median of three of the clients; one that is not a number does not count."""
        few = [clients[i] for i in (0, len(clients) // 2, -1)]
        rows = [torch.empty_like(row[0]) for row in self.rows]
        for row, middle in zip(self.rows, rows, strict=True):
            step = IN_CACHE if self.on_host else len(middle)
            low, high = (torch.empty_like(middle[:step]) for _ in range(2))
            for start in range(0, len(middle), step):
                three = [row[k, start : start + step] for k in few]
                out, scratch = middle[start : start + step], (low[: len(three[0])], high[: len(three[0])])
                _median(three, scratch, out, torch.minimum, torch.maximum)
                if not bool(torch.isfinite(out.sum())):  # these two ignore NaN, and take longer
                    _median(three, scratch, out, torch.fmin, torch.fmax)
        self.put(MIDDLE, rows)

    def _row(self, leaf: int, client: int) -> Any:
        K = len(self.ids)
        return self._seen[leaf][client : client + 1] if client < K else self._extras[client - K][leaf]

    def _rows(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """Consecutive ranks as a view."""
        first, last = clients[0], clients[-1]
        if last < len(self.ids) and list(clients) == list(range(first, last + 1)):
            return self._seen[leaf][first : last + 1, start:stop]
        return None

    def read(self, leaf: int, start: int, stop: int, clients: Sequence[int], out: Host, minus: Host | None) -> None:
        """Copy or subtract, at once where the ranks are consecutive."""
        view = self._rows(leaf, start, stop, clients)
        for rows, values in (
            [(out, view)] if view is not None else
            [(out[j : j + 1], self._row(leaf, k)[:, start:stop]) for j, k in enumerate(clients)]
        ):  # fmt: skip
            if minus is not None and values.dtype == out.dtype:
                np.subtract(values, minus, out=rows)
            else:
                arrays.widen(values, rows)
                if minus is not None:
                    np.subtract(rows, minus, out=rows)

    def block(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """(k, stop - start) on the device."""
        view = self._rows(leaf, start, stop, clients)
        return view if view is not None else torch.cat([self._row(leaf, k)[:, start:stop] for k in clients])

    def sink(self) -> MemorySink:
        """The result is kept in memory."""
        return MemorySink(self.leaves)

    def read_integers(self, leaf: int, clients: Sequence[int]) -> Host:
        """There are none."""
        raise IndexError(leaf)

    def assemble(self, floats: Sequence[Any], integers: Sequence[Host]) -> Any:
        """A flat tensor for each leaf."""
        return [
            arrays.from_host(values, leaf.spec, row) if isinstance(values, np.ndarray) else values.to(row.dtype)
            for values, leaf, row in zip(floats, self.leaves, self.rows, strict=True)
        ]

    def first_fault(self, client: int) -> tuple[int, int, float] | None:
        """(tensor, flat index, value) of the first value that cannot be used, in the order of the tensors."""
        faults: list[tuple[int, int, float]] = []
        for row, pieces in zip(self.rows, self.pieces, strict=True):
            values = row[client]
            limit = arrays.LARGEST[arrays.COMPUTE[str(values.dtype).removeprefix("torch.")].__name__]
            limit = min(limit, torch.finfo(values.dtype).max)  # a float16 would be compared with an infinite limit
            wrong = ~(values.abs() <= limit)
            if not bool(wrong.any()):
                continue
            column = int(torch.argmax(wrong.to(torch.uint8)))
            offset = 0
            for tensor, start, stop in pieces:
                if column < offset + stop - start:
                    faults.append((tensor, start + column - offset, float(values[column])))
                    break
                offset += stop - start
        return min(faults, default=None)


def _median(
    three: Sequence[torch.Tensor], scratch: Sequence[torch.Tensor], out: torch.Tensor, smaller: Any, larger: Any
) -> None:
    """The median of three rows: `max(min(a, b), min(max(a, b), c))`."""
    (a, b, c), (low, high) = three, scratch
    smaller(a, b, out=low)
    larger(a, b, out=high)
    smaller(high, c, out=high)
    larger(low, high, out=out)


class Update(InMemorySource):
    """The K ranks' updates as the engine sees them: names, shapes and layers; the passes know where the values are."""

    on_host = True

    def __init__(
        self, ids: Sequence[ClientId], leaves: Sequence[Leaf], layers: Sequence[Layer], slices: Slices
    ) -> None:
        self.ids, self.leaves, self.layers = tuple(ids), tuple(leaves), tuple(layers)
        self.refused: dict[int, str] = {}
        self.integers: tuple[Leaf, ...] = ()
        self.has_reference = slices.has_reference
        self._slices = slices

    def assemble(self, floats: Sequence[Any], integers: Sequence[Host]) -> Any:
        """This rank's slice of the result."""
        return self._slices.assemble(floats, integers)

    def read(self, leaf: int, start: int, stop: int, clients: Sequence[int], out: Host, minus: Host | None) -> None:
        """Only the passes read."""
        raise NotImplementedError

    def block(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """Only the passes read."""
        raise NotImplementedError

    def sink(self) -> Any:
        """Only the passes write."""
        raise NotImplementedError

    def read_integers(self, leaf: int, clients: Sequence[int]) -> Host:
        """There are none."""
        raise IndexError(leaf)


def local_layers(layers: Sequence[Layer], pieces: Sequence[Sequence[tuple[int, int, int]]]) -> tuple[Layer, ...]:
    """What lies here of each layer, given what each leaf covers; layers are made of whole tensors."""
    of_tensor = {tensor: i for i, layer in enumerate(layers) for tensor, _, _ in layer.spans}
    spans: list[list[tuple[int, int, int]]] = [[] for _ in layers]
    for leaf, covered in enumerate(pieces):
        offset = 0
        for tensor, start, stop in covered:
            own, end = spans[of_tensor[tensor]], offset + stop - start
            if own and own[-1][0] == leaf and own[-1][2] == offset:
                own[-1] = (leaf, own[-1][1], end)
            else:
                own.append((leaf, offset, end))
            offset = end
    return tuple(replace(layer, spans=tuple(own)) for layer, own in zip(layers, spans, strict=True))


def leaf_of(name: str, shape: Sequence[int], dtype: torch.dtype) -> Leaf:
    """A tensor of the list."""
    return Leaf(name, ArraySpec(tuple(shape), str(dtype).removeprefix("torch."), "float"))
