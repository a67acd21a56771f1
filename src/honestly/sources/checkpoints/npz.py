"""NumPy's .npz: a zip of .npy files. Stored ones are read in place, compressed ones unpacked to a temporary file."""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import zipfile
from typing import Any

import numpy as np

from honestly.arrays import ArraySpec, Host
from honestly.sources.checkpoints.checkpoint import SINGLE, Checkpoint, Shard
from honestly.sources.checkpoints.conflicts import MARK, MEANING
from honestly.sources.checkpoints.files import File
from honestly.sources.checkpoints.replace import write_all
from honestly.sources.checkpoints.tensors import DTYPES, FORMAT_NAMES, InFile, Tensor
from honestly.sources.npy import ENOUGH, NpyHeaderError, read_header
from honestly.sources.tree import UnusableError, tensor_label

MOST_MEMBERS = 80_000
#: Bytes that the zip reader may ask for at once: its directory is read whole.
LONGEST_READ = 32_000_000
#: Bytes of the smallest archive: one without members.
SHORTEST = 22
#: Bytes moved at a time when a compressed member is unpacked.
PIECE = 1 << 20


class _View:
    """A file as `zipfile` wants it: seekable, reads by position, never writes."""

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._file.size)[whence]
        if base + offset < 0:
            raise ValueError("a position before the file's beginning")
        self._at = base + offset
        return self._at

    def read(self, n: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        if min(n, left) > LONGEST_READ or (n < 0 and left > LONGEST_READ):  # a directory of the archive as long as that
            raise UnusableError(f"asks for {left} bytes at once, the limit is {LONGEST_READ}")
        data = self._file.bytes(self._at, left if n < 0 else min(n, left))
        self._at += len(data)
        return data


def open_zip(file: File) -> zipfile.ZipFile:
    """The archive in a file, whose directory is read now. Raises many kinds of errors if it is damaged."""
    return zipfile.ZipFile(_View(file))  # type: ignore[arg-type]


def read_npz(file: File) -> Checkpoint:
    """The arrays of an .npz by name. Raises `UnusableError` with the reason; pickles are never loaded."""
    if file.size < SHORTEST:
        raise UnusableError(f"{file.name!r} has {file.size} bytes, too few for an .npz file")
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    try:
        archive = _Archive(file)
        members = archive.content.infolist()
        if archive.content.comment == f"{MARK}: {MEANING}".encode():
            metadata[MARK] = MEANING
        if len(members) > MOST_MEMBERS:
            raise UnusableError(f"holds {len(members)} arrays, the limit is {MOST_MEMBERS}")
        for member in members:
            name = member.filename.removesuffix(".npy")
            name.encode("utf-8")
            if name in tensors:
                raise UnusableError(f"the name {name[:100]!r} occurs twice in its header")
            tensors[name] = _tensor(file, archive, member, name)
    except UnusableError:
        raise
    except Exception as error:  # zipfile and zlib raise a dozen kinds of errors on damaged archives
        raise UnusableError(f"is not a valid .npz file ({type(error).__name__}: {str(error)[:100]})") from None
    return Checkpoint("npz", tensors, (Shard(SINGLE, tuple(tensors)),), (file,), metadata)


def _tensor(file: File, archive: _Archive, member: zipfile.ZipInfo, name: str) -> Tensor:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UnusableError(f"{tensor_label(name)} uses a compression that NumPy does not write; save it with np.savez")
    with archive.content.open(member) as stream:
        start = stream.read(ENOUGH)
    try:
        layout = read_header(start)
    except NpyHeaderError as error:
        raise UnusableError(f"{tensor_label(name)} {error}") from None
    shape, dtype, header = layout.shape, layout.dtype, layout.length
    if layout.fortran and len(shape) > 1:
        raise UnusableError(f"{tensor_label(name)} is stored by columns; save np.ascontiguousarray of it")
    ours = dtype.newbyteorder("=").name
    if ours not in FORMAT_NAMES:
        raise UnusableError(f"{tensor_label(name)} has dtype {ours[:40]}, expected a float, integer or bool dtype")
    spec = ArraySpec(shape, ours, DTYPES[FORMAT_NAMES[ours]][2])
    size = spec.size * dtype.itemsize
    if header + size != member.file_size:
        raise UnusableError(f"{tensor_label(name)} has {member.file_size} bytes, but its header needs {header + size}")
    if ours == "uint16":
        # Only integers use it here: bfloat16 has no name in NumPy's format.
        spec = ArraySpec(shape, "uint16", "integer")
    stored = np.dtype("u1") if ours == "bool" else dtype
    if member.compress_type != zipfile.ZIP_STORED:
        return _PackedArray(spec, stored, archive, member, header)
    local = file.bytes(member.header_offset, 30)
    name_length, extra_length = struct.unpack("<HH", local[26:30])
    offset = member.header_offset + 30 + name_length + extra_length + header
    if offset + size > file.size:
        raise UnusableError(f"{tensor_label(name)} ends beyond the end of the file")
    return InFile(spec, stored, file, offset)


class _Archive:
    """The archive of one file, whose directory is read once; one thread at a time may take arrays out of it."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.content = open_zip(file)
        self.lock = threading.Lock()


class _PackedArray:
    """A compressed array. It is unpacked on its first use: only then is its layout known to be that of the model, so a
    small file cannot make us write more than one model's bytes."""

    def __init__(
        self, spec: ArraySpec, stored: np.dtype[Any], archive: _Archive, member: zipfile.ZipInfo, header: int
    ) -> None:
        self.spec = spec
        self._stored, self._archive, self._member, self._header = stored, archive, member, header
        self._file = archive.file
        self._file_range: InFile | None = None
        self._damage = ""  # found once: every block asks, and each attempt would take up more of the temporary file

    def _unpack(self) -> InFile:
        """The plain values, in the pool's temporary file."""
        left = self.spec.size * self._stored.itemsize
        try:
            fd, begin = self._file.pool.room(left)
            at = begin
            with self._archive.content.open(self._member) as stream:
                stream.read(self._header)
                while piece := stream.read(min(PIECE, left)):
                    write_all(fd, piece, at)
                    left, at = left - len(piece), at + len(piece)
                if left or stream.read(1):
                    raise UnusableError(f"{self._file.name[:100]!r}: an array is not as long as its header says")
        except UnusableError:
            raise
        except OSError as error:  # the disk is full, which is no client's fault
            raise OSError(
                error.errno, f"{error.strerror} while a compressed file was unpacked", tempfile.gettempdir()
            ) from error
        except Exception as error:  # zlib and zipfile raise a dozen kinds
            raise UnusableError(
                f"{self._file.name[:100]!r} cannot be unpacked ({type(error).__name__}: {str(error)[:100]})"
            ) from None
        return InFile(self.spec, self._stored, _Plain(fd), begin)  # type: ignore[arg-type]

    def _place(self) -> InFile:
        with self._archive.lock:
            if self._damage:
                raise UnusableError(self._damage)
            if self._file_range is None:
                try:
                    self._file_range = self._unpack()
                except UnusableError as reason:
                    self._damage = str(reason)
                    raise
            return self._file_range

    def raw(self, start: int, stop: int) -> Host:
        """Values start..stop as they are stored."""
        return self._place().raw(start, stop)

    def read(self, start: int, stop: int, out: Host) -> None:
        """Values start..stop in the working precision."""
        self._place().read(start, stop, out)


class _Plain:
    """Reads by position from the temporary file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fill(self, offset: int, out: Any) -> None:
        if os.preadv(self._fd, [out], offset) != out.nbytes:
            raise UnusableError("its unpacked values were cut short")
