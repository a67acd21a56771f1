"""Updates as one array whose first axis is the client: `(K, d)`, or `(K, ...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_compat as aac
import numpy as np

from honestly import arrays
from honestly.arrays import ArraySpec, Host
from honestly.result import ClientId
from honestly.sources.grouping import Buffers, layers_of
from honestly.sources.source import InMemorySource, Leaf, MemorySink
from honestly.sources.tree import unreadable


class Matrix(InMemorySource):
    """The rows of one array of NumPy, torch, JAX, CuPy or any array-API library, read in place."""

    def __init__(
        self,
        updates: Any,
        *,
        reference: Any = None,
        root: Any = None,
        sizes: Any = None,
        buffers: Any = "follow",
    ) -> None:
        try:
            whole = arrays.spec(updates)
            self.on_host = arrays.on_host(updates)
            meta = not self.on_host and arrays.is_meta(updates)
            values = arrays.host_view(updates) if self.on_host and whole.kind == "float" else arrays.detach(updates)
        except Exception as error:  # kinds of tensors without plain values: nested, of another layout, freed, ...
            raise ValueError(f"updates {unreadable(error)}") from error
        if whole.kind != "float":
            raise ValueError(
                f"updates have dtype {whole.dtype}; a robust average needs float16, bfloat16, float32 or float64: "
                f"{_remedy(updates, whole.kind)}"
            )
        if len(whole.shape) < 2:
            raise ValueError(
                f"updates have shape {whole.shape}; expected (K, d), one row per client: "
                "for one value per client use updates.reshape(-1, 1)"
            )
        if whole.size == 0 and whole.shape[0] > 0:
            raise ValueError(f"updates have shape {whole.shape}: there are no values to average")
        self.ids: tuple[ClientId, ...] = tuple(range(whole.shape[0]))
        self.refused: dict[int, str] = {}
        self.leaves = (Leaf("", ArraySpec(whole.shape[1:], whole.dtype, "float")),)
        self.layers = layers_of(self.leaves, Buffers.of(buffers), sizes)
        self.integers: tuple[Leaf, ...] = ()
        if meta:
            raise ValueError("updates are on device 'meta', which holds no values")
        self.has_reference = reference is not None
        self._like = updates
        K, d = whole.shape[0], self.leaves[0].size
        self._rows: Any = values.reshape(K, d) if values.ndim > 2 else values
        self._extras = [self._extra(name, extra) for name, extra in (("reference", reference), ("root", root))]

    def _extra(self, name: str, extra: Any) -> Any:
        """The reference or root as one flat row on the updates' device. It must have the layout of one client."""
        if extra is None:
            return None
        if not arrays.is_array(extra):
            raise ValueError(
                f"{name} is a {type(extra).__name__}, expected an array of shape {self.leaves[0].spec.shape}"
            )
        what = arrays.spec(extra)
        shape, own = ([n for n in one if n > 1] for one in (what.shape, self.leaves[0].spec.shape))
        apart = len(shape) > 1 and len(own) > 1 and shape != own  # a flat one has the same values in the same order
        if what.kind != "float" or what.size != self.leaves[0].size or apart:
            raise ValueError(
                f"{name} has shape {what.shape} and dtype {what.dtype}, "
                f"expected one client's shape {self.leaves[0].spec.shape} and a float dtype"
            )
        if self.on_host:
            return arrays.to_host(extra).reshape(1, -1)
        return arrays.like(arrays.detach(extra), self._like).reshape(1, -1)

    def _block(self, start: int, stop: int, clients: Sequence[int]) -> Any:
        """Rows of consecutive clients as a view, others as a copy of this block."""
        K = len(self.ids)
        if len(clients) == 1 and clients[0] >= K:
            return self._extras[clients[0] - K][:, start:stop]
        first, last = clients[0], clients[-1]
        if last < K and last - first == len(clients) - 1 and list(clients) == list(range(first, last + 1)):
            whole = last - first + 1 == K and stop - start == self.leaves[0].size
            return self._rows if whole else self._rows[first : last + 1, start:stop]
        return None

    def read(self, leaf: int, start: int, stop: int, clients: Sequence[int], out: Host, minus: Host | None) -> None:
        """One fused subtraction where the rows are consecutive and of the working precision."""
        view = self._block(start, stop, clients)
        if view is None and max(clients) < len(self.ids):
            view = self._rows[np.asarray(clients), start:stop]
        if view is None:
            for j, k in enumerate(clients):
                self.read(leaf, start, stop, [k], out[j : j + 1], minus)
        elif minus is not None and view.dtype == out.dtype:
            np.subtract(view, minus, out=out)
        else:
            arrays.widen(view, out)
            if minus is not None:
                np.subtract(out, minus, out=out)

    def direct(self, start: int, stop: int, clients: Sequence[int], dtype: type) -> Host | None:
        """The block itself, if NumPy can multiply it without a copy; else None."""
        view = self._block(start, stop, clients)
        return view if view is not None and view.dtype == dtype and view.strides[1] == view.itemsize else None

    def flat_view(self, leaf: int, client: int) -> Host | None:
        """One row."""
        K = len(self.ids)
        return self._rows[client] if client < K else self._extras[client - K][0]

    def sink(self) -> MemorySink:
        """The result is kept in memory."""
        return MemorySink(self.leaves)

    def block(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """(k, stop - start) on the device."""
        view = self._block(start, stop, clients)
        if view is not None:
            return view
        K = len(self.ids)
        xp = arrays.namespace(self._rows)
        return xp.concat(
            [self._extras[k - K][:, start:stop] if k >= K else self._rows[k : k + 1, start:stop] for k in clients]
        )

    def read_integers(self, leaf: int, clients: Sequence[int]) -> Host:
        """A float array holds none."""
        raise IndexError(leaf)

    def assemble(self, floats: Sequence[Any], integers: Sequence[Host]) -> Any:
        """One client's shape, in the library and on the device of the updates."""
        (values,), spec = floats, self.leaves[0].spec
        return (
            arrays.from_host(values, spec, self._like)
            if isinstance(values, np.ndarray) and self.on_host
            else arrays.reshape_to(values, spec)
        )


def _remedy(updates: Any, kind: str) -> str:
    """What to write instead, in the words of the array's own library."""
    if kind == "masked":
        return "replace the masked values first, e.g. updates.filled(0.0)"
    own = "updates.float()" if aac.is_torch_array(updates) else "updates.astype('float32')"
    return f"convert them first, e.g. {own}"
