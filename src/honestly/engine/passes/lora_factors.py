"""The factors of LoRA adapters, read in chunks, and the Gram matrices of their products, which are not formed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from honestly.engine.passes.products import sum_blocks, vanishing
from honestly.result import Float
from honestly.sources.checkpoints.adapter import Pair
from honestly.sources.checkpoints.lora import LoraSource

# Values of all clients' factors that are in memory at once, as float64: 16 MB.
CHUNK = 1 << 21
# Fewer columns or rows at a time than this cost more calls than they save memory.
NARROWEST = 128
# Longer factors than this might not fit into float16, and factors that are that much longer than their product cancel
# each other: both are re-factored before they are written.
LONGEST, CANCELLING = 2.0**15, 2.0**10
# Factors that are averaged by themselves may be this many times as long as those of the median client.
UNUSUAL = 10


class LoraFactors:
    """Reads the factors A and B of all clients; what it has measured is kept, because it is needed often."""

    def __init__(self, source: LoraSource) -> None:
        self.source = source
        self._order: list[int] = []
        self._known: Float = np.zeros((0, 0, 0))
        self._squares: dict[str, Float] = {}  # by module: ||A||^2 and ||B||^2 of each client, (2, k)

    def pairs(self, module: str, clients: Sequence[int]) -> list[Pair]:
        """The factors of a module, client by client."""
        return [self.source.adapter(k).pairs[module] for k in clients]

    def grams(self, rows: Sequence[int]) -> Float:
        """(leaves, k, k) Gram matrices of the products, then of the other tensors; kept: they are asked for often."""
        at = self._positions(rows)
        return self._known[:, at][:, :, at]

    def _positions(self, rows: Sequence[int]) -> list[int]:
        """Where these clients are in what has been measured."""
        if not set(rows) <= set(self._order):
            self._order = sorted(set(rows))
            self._known = np.stack([*self._measure(self._order)])
        return [self._order.index(k) for k in rows]

    def _measure(self, rows: list[int]) -> Iterator[Float]:
        with np.errstate(over="ignore", invalid="ignore"):
            for module in self.source.modules:
                pairs = self.pairs(module, rows)
                MA, MB = self.small(rows, pairs)
                ranks = [pair.rank for pair in pairs]
                G = sum_blocks(MA * MB, ranks)
                starts = np.concatenate([[0], np.cumsum(ranks)[:-1]]).astype(int)
                self._squares[module] = np.add.reduceat(np.stack([np.diagonal(MA), np.diagonal(MB)]), starts, axis=1)
                nothing = vanishing(np.diagonal(G), *self._squares[module])
                G[nothing, :] = G[:, nothing] = 0
                yield G
            for name in self.source.plain:
                yield sum((X @ X.T for _, X in self.plain_chunks(name, rows)), np.zeros((len(rows), len(rows))))

    def unwieldy(self, module: int, clients: Sequence[int], weights: Float) -> np.ndarray:
        """Which clients' factors of a module, B times their weights, must not be written as they are."""
        at = self._positions(clients)
        square, (a, b) = self._known[module][at, at], self._squares[self.source.modules[module]][:, at]
        return (a > LONGEST**2) | (b * weights**2 > LONGEST**2) | (a * b > CANCELLING**2 * square)

    def comparable(self, weights: Float, clients: Sequence[int]) -> Float:
        """(leaves, k) the weights without those of clients whose A or B is far longer than usual in that module.

        The weights belong to products. Behind an ordinary product a client may hide factors of any length, and the mean
        of A, or that of B, would be its own.
        """
        weights, at = weights.copy(), self._positions(clients)
        for row, module in zip(weights, self.source.modules, strict=False):  # other tensors come after the modules
            squares = self._squares[module][:, at]
            rest = np.where((squares > UNUSUAL**2 * np.median(squares, axis=1, keepdims=True)).any(axis=0), 0, row)
            if rest.any():
                row[:] = rest * (row.sum() / rest.sum())
        return weights

    def small(self, clients: Sequence[int], pairs: Sequence[Pair]) -> tuple[Float, Float]:
        """(M_A, M_B), both R x R."""
        R = sum(pair.rank for pair in pairs)
        MA = sum((A @ A.T for _, A in self.a_chunks(clients, pairs)), np.zeros((R, R)))
        MB = sum((B.T @ B for _, B in self.b_chunks(clients, pairs)), np.zeros((R, R)))
        return MA, MB

    def a_chunks(self, clients: Sequence[int], pairs: Sequence[Pair]) -> Iterator[tuple[int, Float]]:
        """Columns of all A, one above the other: (first column, (R, width))."""
        R, columns = sum(pair.rank for pair in pairs), pairs[0].columns
        width = max(NARROWEST, CHUNK // R)
        for start in range(0, columns, width):
            stop, at = min(columns, start + width), 0
            out = np.empty((R, stop - start))
            for k, pair in zip(clients, pairs, strict=True):
                for row in range(pair.rank):
                    first = row * columns
                    self.source.read_tensor(k, pair.a, first + start, first + stop, out[at + row])
                at += pair.rank
            yield start, out

    def b_chunks(self, clients: Sequence[int], pairs: Sequence[Pair]) -> Iterator[tuple[int, Float]]:
        """Rows of all B, scaled, side by side: (first row, (height, R))."""
        R, rows = sum(pair.rank for pair in pairs), pairs[0].rows
        height = max(NARROWEST, CHUNK // R)
        for start in range(0, rows, height):
            stop, at = min(rows, start + height), 0
            out = np.empty((stop - start, R))
            for k, pair in zip(clients, pairs, strict=True):
                own = np.empty((stop - start) * pair.rank)
                self.source.read_tensor(k, pair.b, start * pair.rank, stop * pair.rank, own)
                out[:, at : at + pair.rank] = pair.scale * own.reshape(-1, pair.rank)
                at += pair.rank
            yield start, out

    def plain_chunks(self, name: str, clients: Sequence[int]) -> Iterator[tuple[int, Float]]:
        """Columns of another tensor: (first column, (clients, width))."""
        tensors = [self.source.adapter(k).plain[name] for k in clients]
        size, width = tensors[0].spec.size, max(NARROWEST, CHUNK // len(clients))
        for start in range(0, size, width):
            out = np.empty((len(clients), min(size, start + width) - start))
            for j, (k, tensor) in enumerate(zip(clients, tensors, strict=True)):
                self.source.read_tensor(k, tensor, start, start + out.shape[1], out[j])
            yield start, out
