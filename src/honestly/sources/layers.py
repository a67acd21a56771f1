"""Updates as containers of arrays: state dicts, lists of arrays, pytrees, or one array per client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly import arrays
from honestly.arrays import ArraySpec, Host
from honestly.result import ClientId
from honestly.sources import tree
from honestly.sources.grouping import Buffers, layers_of
from honestly.sources.source import InMemorySource, Leaf, MemorySink, majority_spec


class Layers(InMemorySource):
    """K containers with the same layout. A client whose layout differs from the others' is excluded by name.

    The layout that counts is the reference's where one is given, else that of most clients. So do the containers, and
    the order of their keys, but to differ in these costs nobody the vote.
    """

    def __init__(
        self,
        ids: Sequence[ClientId],
        updates: Sequence[Any],
        *,
        reference: Any = None,
        root: Any = None,
        sizes: Any = None,
        buffers: Any = "follow",
    ) -> None:
        self.ids = tuple(ids)
        self.has_reference = reference is not None
        self.refused: dict[int, str] = {}
        flattened = [self._flatten(k, update) for k, update in enumerate(updates)]
        flat = [None if one is None else one[0] for one in flattened]
        layouts = [None if one is None else {path: what.layout for path, what in one[1].items()} for one in flattened]
        expected = self._expected_layout(layouts, reference)
        for k, layout in enumerate(layouts):
            if layout is not None and layout != expected:
                self.refused[k] = tree.difference(layout, expected)
        usable = [k for k in range(len(flat)) if k not in self.refused]
        alike = self._with_common_form([None if one is None else one[2] for one in flattened], usable, reference)
        if reference is None and alike:
            expected = layouts[alike[0]] or expected  # in the order of most clients
        rows = [leaves if k not in self.refused else None for k, leaves in enumerate(flat)]
        extras = [
            None if extra is None else self._extra(extra, expected, name)
            for name, extra in (("reference", reference), ("root", root))
        ]
        named = [rows[k] for k in usable] or [extras[0]]
        described = [one[1] for k in usable if (one := flattened[k]) is not None]
        described = described or [tree.specs(extra) for extra in extras[:1] if extra is not None]
        specs = {path: majority_spec([one[path] for one in described]) for path in expected}
        self.leaves = tuple(Leaf(path, specs[path]) for path in expected if specs[path].kind == "float")
        self.layers = layers_of(self.leaves, Buffers.of(buffers), sizes)
        self.integers = tuple(Leaf(path, specs[path]) for path in expected if specs[path].kind != "float")
        self.on_host = _mostly_on_host(named, self.leaves)
        self._home = next((row[leaf.name] for row in named if row for leaf in self.leaves), None)
        self._rows = [self._prepare_client(k, row) for k, row in enumerate([*rows, *extras])]
        self._flat: dict[tuple[int, int], Host | None] = {}
        self._template = next((updates[k] for k in [*alike, *usable] if k not in self.refused), reference)

    def _flatten(self, k: int, update: Any) -> tuple[dict[str, Any], dict[str, ArraySpec], Any] | None:
        try:
            leaves = tree.flatten(update)
            specs, form = tree.specs(leaves), tree.form(update)
        except tree.UnusableError as reason:
            self.refused[k] = str(reason)
        except Exception as error:  # a client's object may raise any exception; the client is then excluded
            self.refused[k] = tree.unreadable(error)
        else:
            return leaves, specs, form
        return None

    def _with_common_form(self, forms: Sequence[Any], usable: Sequence[int], reference: Any) -> list[int]:
        """The usable clients whose containers are like the reference's, else like those of most clients."""
        agreed = None if reference is None else tree.form(reference)
        if usable and not any(forms[k] == agreed for k in usable):
            agreed = forms[usable[0]]
            if any(forms[k] != agreed for k in usable):
                votes = Counter(forms[k] for k in usable)
                agreed = max(votes, key=lambda form: votes[form])
        return [k for k in usable if forms[k] == agreed]

    def _expected_layout(self, layouts: Sequence[Any], reference: Any) -> dict[str, tuple[tuple[int, ...], str]]:
        if reference is not None:
            try:
                return tree.signature(tree.flatten(reference))
            except tree.UnusableError as reason:
                raise ValueError(f"reference {reason}") from None
        known = [layout for layout in layouts if layout is not None]
        if all(layout == known[0] for layout in known[1:]):
            return known[0] if known else {}
        votes = Counter(frozenset(layout.items()) for layout in known)
        return max(known, key=lambda layout: votes[frozenset(layout.items())], default={})

    def _extra(self, extra: Any, expected: dict[str, Any], name: str) -> dict[str, Any]:
        try:
            leaves = tree.flatten(extra)
            layout = tree.signature(leaves)
        except tree.UnusableError as reason:
            raise ValueError(f"{name} {reason}") from None
        if expected and layout != expected:
            raise ValueError(f"{name}: {tree.difference(layout, expected)}")
        return leaves

    def _prepare_client(self, k: int, row: dict[str, Any] | None) -> dict[str, Any] | None:
        """The result of `_prepare`; a client with an array whose values cannot be read is excluded."""
        try:
            return self._prepare(row)
        except Exception as error:
            if k >= len(self.ids):
                raise ValueError(f"{('reference', 'root')[k - len(self.ids)]} {tree.unreadable(error)}") from error
            self.refused[k] = tree.unreadable(error)
            return None

    def _prepare(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        """NumPy views of arrays on the host; device arrays unchanged."""
        if row is None:
            return None
        if self.on_host:
            return {path: arrays.host_view(x) if arrays.on_host(x) else x for path, x in row.items()}
        return {path: arrays.detach(x) for path, x in row.items()}

    def _row(self, client: int) -> dict[str, Any]:
        row = self._rows[client]
        assert row is not None, "a refused client is never read"
        return row

    def read(self, leaf: int, start: int, stop: int, clients: Sequence[int], out: Host, minus: Host | None) -> None:
        """Copy (or subtract) client after client into the rows of `out`."""
        for k, to in zip(clients, out, strict=True):
            x = self.flat_view(leaf, k)
            piece = self._piece(leaf, start, stop, k) if x is None else x[start:stop]
            if piece.dtype != out.dtype:
                arrays.widen(piece, to)
                piece = to
            if minus is not None:
                np.subtract(piece, minus, out=to)
            elif piece is not to:
                np.copyto(to, piece)

    def _piece(self, leaf: int, start: int, stop: int, client: int) -> Host:
        """A copy of values that are not contiguous, or that are on another device than the others'."""
        x = self._row(client)[self.leaves[leaf].name]
        if isinstance(x, np.ndarray):
            return arrays.flat_slice(x, start, stop)
        return arrays.to_host(x.reshape(-1)[start:stop])

    def flat_view(self, leaf: int, client: int) -> Host | None:
        """The array, if it is contiguous and on the host."""
        key = leaf, client
        if key not in self._flat:
            x = self._row(client)[self.leaves[leaf].name]
            in_one_piece = isinstance(x, np.ndarray) and x.flags.c_contiguous
            self._flat[key] = x.reshape(-1) if in_one_piece else None
        return self._flat[key]

    def sink(self) -> MemorySink:
        """The result is kept in memory."""
        return MemorySink(self.leaves)

    def block(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """Stack the clients' pieces on the device that most of them are on."""
        assert self._home is not None
        name = self.leaves[leaf].name
        xp = arrays.namespace(self._home)
        rows = [xp.reshape(arrays.like(self._row(k)[name], self._home), (-1,))[start:stop] for k in clients]
        dtype = xp.result_type(*rows)
        return xp.stack([xp.astype(row, dtype, copy=False) for row in rows])

    def slab(self, spans: Sequence[tuple[int, int, int]], clients: Sequence[int], dtype: str) -> Any:
        """(k, columns) several leaves' pieces side by side, in one copy; as `dtype` unless all have the same one."""
        assert self._home is not None
        xp = arrays.namespace(self._home)
        rows: list[Any] = []
        for k in clients:
            for leaf, start, stop in spans:
                piece = xp.reshape(arrays.like(self._row(k)[self.leaves[leaf].name], self._home), (-1,))
                rows.append(piece if stop - start == piece.shape[0] else piece[start:stop])
        if len({str(row.dtype) for row in rows}) > 1:
            rows = [xp.astype(row, getattr(xp, dtype), copy=False) for row in rows]
        return xp.reshape(xp.concat(rows), (len(clients), -1))

    def read_integers(self, leaf: int, clients: Sequence[int]) -> Host:
        """(k, size) integer values in the dtype of most clients, which one client of another width cannot change."""
        name, agreed = self.integers[leaf].name, self.integers[leaf].spec.dtype
        rows = [np.asarray(arrays.to_host(self._row(k)[name])).reshape(-1) for k in clients]
        dtype = next((row.dtype for row in rows if row.dtype.name == agreed), np.dtype(agreed)).newbyteorder("=")
        return np.stack([row.astype(dtype, copy=False) for row in rows])

    def assemble(self, floats: Sequence[Any], integers: Sequence[Host]) -> Any:
        """A container like those of most clients with the new values in it."""
        new = {leaf.name: (leaf.spec, values) for leaf, values in zip(self.leaves, floats, strict=True)}
        new |= {leaf.name: (leaf.spec, values) for leaf, values in zip(self.integers, integers, strict=True)}
        old = tree.flatten(self._template)
        return tree.rebuild(self._template, lambda path: _restore(*new[path], like=old[path]))


def _restore(spec: ArraySpec, values: Any, *, like: Any) -> Any:
    if isinstance(values, np.ndarray):
        return arrays.from_host(values, spec, like)
    return arrays.reshape_to(values, spec)


def _mostly_on_host(rows: Sequence[dict[str, Any] | None], leaves: Sequence[Leaf]) -> bool:
    if not leaves:
        return True
    on_host = [arrays.on_host(row[leaves[0].name]) for row in rows if row is not None]
    return 2 * sum(on_host) >= len(on_host)
