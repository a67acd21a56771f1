"""K clients' updates as re-iterable column blocks, and how to rebuild one update.

A source knows its clients by position. Position K is the reference (the previous global model) and K + 1 the trusted
root update, where the caller gave them, so passes read them like any client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from honestly.arrays import ArraySpec, Host, empty_host, narrow
from honestly.result import ClientId

#: Float dtypes by how much they can hold.
WIDTH = {"float16": 1, "bfloat16": 2, "float32": 3, "float64": 4}


def majority_spec(specs: Sequence[ArraySpec]) -> ArraySpec:
    """The dtype of most clients (ties go to the widest): one client cannot change the model's dtype."""
    if specs.count(specs[0]) == len(specs):
        return specs[0]
    votes = Counter(spec.dtype for spec in specs)
    dtype = max(votes, key=lambda name: (votes[name], WIDTH.get(name, 0), name))
    return next(spec for spec in specs if spec.dtype == dtype)


@dataclass(frozen=True)
class Leaf:
    """One tensor that every client sends, float or integer, with the dtype of the result."""

    name: str
    spec: ArraySpec

    @property
    def size(self) -> int:
        """Number of values."""
        return self.spec.size


@dataclass(frozen=True)
class Layer:
    """Columns that are judged together: a tensor, or several small ones.

    Attributes:
        name: of the tensor, or of what its tensors have in common.
        spans: (leaf, start, stop) of the columns, each column of a source in exactly one layer.
        follows: a buffer (running means and variances): not judged, it is averaged with the weights found.
        kept: a buffer that is not even averaged: the reference's is kept, else that of a believed client.
    """

    name: str
    spans: tuple[tuple[int, int, int], ...]
    follows: bool = False
    kept: bool = False

    @property
    def size(self) -> int:
        """Number of columns."""
        return sum(stop - start for _, start, stop in self.spans)


class Sink(Protocol):
    """Where the result's blocks go as they are computed, by several threads at once: memory, or a file."""

    def put(self, leaf: int, start: int, stop: int, values: Host) -> None:
        """Store values start..stop of a float leaf, rounded to its dtype."""
        ...

    def finish(self) -> Sequence[Any]:
        """Return what `Source.assemble` takes, once all blocks are stored."""
        ...


class MemorySink:
    """The result in memory: one flat NumPy array per leaf."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._values = [empty_host(leaf.spec) for leaf in leaves]

    def put(self, leaf: int, start: int, stop: int, values: Host) -> None:
        """Round the values and store them."""
        narrow(values, self._values[leaf][start:stop])

    def flat_view(self, leaf: int) -> Host:
        """The leaf's flat array, for callers that round into it themselves."""
        return self._values[leaf]

    def finish(self) -> Sequence[Any]:
        """The arrays."""
        return self._values


class InMemorySource:
    """The common part of sources whose values are in memory."""

    notes: Mapping[str, Any] = {}

    def flat_view(self, leaf: int, client: int) -> Host | None:
        """The flat values of one client's leaf where they lie (bfloat16 as its bits); None if they must be copied."""
        return None

    def faults(self) -> Mapping[int, str]:
        """Empty: values in memory do not change while they are read."""
        return {}

    def close(self) -> None:
        """There is nothing to release."""


class Source(Protocol):
    """What the engine needs to know about K clients' updates."""

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """The clients: 0..K-1, or the keys of the mapping that the caller passed."""
        ...

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The float tensors, in a fixed order: together, the d coordinates."""
        ...

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What is judged by itself: every column of the float leaves is in exactly one; at most about 100."""
        ...

    @property
    def integers(self) -> tuple[Leaf, ...]:
        """The integer and boolean tensors (BatchNorm counters and the like)."""
        ...

    @property
    def refused(self) -> Mapping[int, str]:
        """Clients whose layout, type or device is wrong, by position, with the reason."""
        ...

    @property
    def has_reference(self) -> bool:
        """Whether position K, the reference, can be read."""
        ...

    @property
    def on_host(self) -> bool:
        """True if blocks are read by NumPy (`read`), False if they stay on an accelerator (`block`)."""
        ...

    def read(self, leaf: int, start: int, stop: int, clients: Sequence[int], out: Host, minus: Host | None) -> None:
        """Write values start..stop of a float leaf of these clients into the rows of `out`, less `minus` if given."""
        ...

    def sink(self) -> Sink:
        """Where a host pass puts the result."""
        ...

    def block(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """The same as (k, stop - start) array on the accelerator, in the leaf's own dtype."""
        ...

    @property
    def notes(self) -> Mapping[str, Any]:
        """Notes about the result, which are added to the diagnostics."""
        ...

    def faults(self) -> Mapping[int, str]:
        """Clients found unreadable, or changed, since the source was opened (files only), with the reason."""
        ...

    def close(self) -> None:
        """Release what the source holds; an output that was not assembled is discarded."""
        ...

    def read_integers(self, leaf: int, clients: Sequence[int]) -> Host:
        """(k, size) values of an integer leaf on the host."""
        ...

    def assemble(self, floats: Sequence[Any], integers: Sequence[Host]) -> Any:
        """One update in the clients' own container: flat NumPy arrays (on the host) or flat device arrays."""
        ...
