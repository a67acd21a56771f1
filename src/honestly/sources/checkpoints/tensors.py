"""One tensor of one client, read piece by piece: from a file by position, or from an array."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from honestly.arrays import ArraySpec, Host, narrow, widen
from honestly.sources.checkpoints.files import File
from honestly.sources.checkpoints.header import TensorEntry

#: The format's dtype names: ours, NumPy's storage (bfloat16 as its 16 bits, bool as bytes) and kind.
DTYPES: dict[str, tuple[str, str, str]] = {
    "F64": ("float64", "<f8", "float"),
    "F32": ("float32", "<f4", "float"),
    "F16": ("float16", "<f2", "float"),
    "BF16": ("bfloat16", "<u2", "float"),
    "I64": ("int64", "<i8", "integer"),
    "I32": ("int32", "<i4", "integer"),
    "I16": ("int16", "<i2", "integer"),
    "I8": ("int8", "<i1", "integer"),
    "U64": ("uint64", "<u8", "integer"),
    "U32": ("uint32", "<u4", "integer"),
    "U16": ("uint16", "<u2", "integer"),
    "U8": ("uint8", "<u1", "integer"),
    "BOOL": ("bool", "<u1", "bool"),
}
FORMAT_NAMES = {ours: theirs for theirs, (ours, _, _) in DTYPES.items()}


def storage(spec: ArraySpec) -> np.dtype:
    """The NumPy dtype of the values in a file that we write."""
    return np.dtype(DTYPES[FORMAT_NAMES[spec.dtype]][1])


class Tensor(Protocol):
    """What can be read of a client's tensor, in a file or in memory."""

    @property
    def spec(self) -> ArraySpec:
        """Shape, dtype and kind."""
        ...

    def raw(self, start: int, stop: int) -> Host:
        """Values start..stop as they are stored, valid until this thread's next call."""
        ...

    def read(self, start: int, stop: int, out: Host) -> None:
        """Values start..stop of a float tensor into `out`, contiguous float32 or float64."""
        ...


class _Scratch(threading.local):
    """A buffer per thread for values whose dtype in the file is narrower than the working precision."""

    buffer = np.empty(0, np.uint8)

    def get(self, nbytes: int) -> Host:
        if len(self.buffer) < nbytes:
            self.buffer = np.empty(nbytes, np.uint8)
        return self.buffer[:nbytes]


_scratch = _Scratch()


@dataclass(frozen=True, slots=True)
class InFile:
    """A tensor whose values lie back to back in a file."""

    spec: ArraySpec
    stored: np.dtype
    file: File
    offset: int

    @classmethod
    def of(cls, file: File, entry: TensorEntry) -> InFile:
        """The tensor that a safetensors header describes."""
        dtype, stored, kind = DTYPES[entry.dtype]
        return cls(ArraySpec(entry.shape, dtype, kind), np.dtype(stored), file, entry.offset)

    def raw(self, start: int, stop: int) -> Host:
        """Values start..stop as they are stored, valid until this thread's next call."""
        size = self.stored.itemsize
        buffer = _scratch.get((stop - start) * size)
        if len(buffer):
            self.file.fill(self.offset + start * size, buffer)
        return buffer.view(self.stored)

    def read(self, start: int, stop: int, out: Host) -> None:
        """Straight into `out` if the file holds what the work needs, else through this thread's buffer."""
        if self.stored == out.dtype and stop > start:
            self.file.fill(self.offset + start * self.stored.itemsize, out)
        else:
            widen(self.raw(start, stop), out)


@dataclass(frozen=True, slots=True)
class InMemoryTensor:
    """A tensor that another reader has already loaded or mapped, flat."""

    spec: ArraySpec
    values: Host

    def raw(self, start: int, stop: int) -> Host:
        """A view."""
        return self.values[start:stop]

    def read(self, start: int, stop: int, out: Host) -> None:
        """A copy in the working precision."""
        widen(self.values[start:stop], out)


@dataclass(frozen=True, slots=True)
class ScaledTensor:
    """A tensor times a number."""

    tensor: Tensor
    factor: float

    @property
    def spec(self) -> ArraySpec:
        """The tensor's own."""
        return self.tensor.spec

    def raw(self, start: int, stop: int) -> Host:
        """Scaled values, rounded to the tensor's dtype."""
        values = np.empty(stop - start, np.float32 if self.spec.dtype != "float64" else np.float64)
        self.read(start, stop, values)
        out = np.empty(stop - start, storage(self.spec))
        narrow(values, out)
        return out

    def read(self, start: int, stop: int, out: Host) -> None:
        """Scaled values."""
        self.tensor.read(start, stop, out)
        with np.errstate(over="ignore", invalid="ignore"):
            out *= out.dtype.type(self.factor)


class TensorTable(Mapping[str, InFile]):
    """Tensors by name, as one row of numbers each: twenty clients may have a hundred thousand tensors each.

    Tables of clients that have the same tensors share the names, in `order`, and make a tensor when it is asked for.
    """

    def __init__(self, tensors: Mapping[str, InFile], order: Mapping[str, int]) -> None:
        kinds: dict[tuple[ArraySpec, np.dtype], int] = {}
        files: dict[File, int] = {}
        rows = np.empty((len(order), 3), np.int64)
        rows[[order[name] for name in tensors]] = [
            (kinds.setdefault((t.spec, t.stored), len(kinds)), files.setdefault(t.file, len(files)), t.offset)
            for t in tensors.values()
        ]
        self._order, self._rows = order, rows
        self._kinds: Sequence[tuple[ArraySpec, np.dtype]] = list(kinds)
        self._files: Sequence[File] = list(files)

    def __getitem__(self, name: str) -> InFile:
        kind, file, offset = self._rows[self._order[name]].tolist()
        spec, stored = self._kinds[kind]
        return InFile(spec, stored, self._files[file], offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)
