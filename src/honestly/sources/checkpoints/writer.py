"""The output: written block by block into a temporary file beside the target, which then replaces the target."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from honestly.arrays import Host, narrow
from honestly.files import sync_folder
from honestly.sources.checkpoints.checkpoint import ADAPTER, INDEX, SINGLE, Shard
from honestly.sources.checkpoints.conflicts import MARK, MEANING, mark_result
from honestly.sources.checkpoints.files import Pool
from honestly.sources.checkpoints.replace import (
    Draft,
    check_replaceable,
    fill,
    naming,
    remove,
    replace_folder,
    write_all,
)
from honestly.sources.checkpoints.tensors import FORMAT_NAMES, storage
from honestly.sources.source import Leaf

PIECE = 1 << 20
#: File extensions that a folder of weights would not have.
OTHER_FILES = (
    ".pt", ".pth", ".bin", ".ckpt", ".pkl", ".npy", ".h5", ".onnx", ".gguf", ".zip",
    ".json", ".jsonl", ".txt", ".html", ".htm", ".md", ".csv", ".toml",
)  # fmt: skip


@dataclass(frozen=True)
class Output:
    """Where the result goes: one `.safetensors` or `.npz` file, or a folder of shards (any other name)."""

    path: Path
    kind: str  # "file", "npz" or "folder"

    @classmethod
    def at(cls, out: Any) -> Output:
        """Check the target before any work is done. Raises ValueError if it cannot be written."""
        if not isinstance(out, str | os.PathLike) or not str(out):
            raise ValueError(f"out is {out!r}, expected the path of a .safetensors or .npz file or of a folder")
        path = Path(out)
        suffix = path.suffix.lower()
        if suffix in OTHER_FILES:
            raise ValueError(f"out is {str(path)!r}; results are written as .safetensors, .npz or a folder")
        kind = {".safetensors": "file", ".npz": "npz"}.get(suffix, "folder")
        if kind == "folder" and path.is_symlink():
            path = path.resolve()  # a link itself cannot become a folder
        if not path.parent.is_dir():
            raise ValueError(f"out is {str(path)!r}, but the folder {str(path.parent)!r} does not exist: create it")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ValueError(f"out is {str(path)!r}, but the folder {str(path.parent)!r} cannot be written")
        if kind != "folder" and path.is_dir():
            raise ValueError(
                f"out is {str(path)!r}, which is a folder; give a file name, or a folder without that ending"
            )
        if kind == "folder":
            check_replaceable(path)
        return cls(path, kind)

    def sink(
        self, leaves: Sequence[Leaf], everything: Sequence[Leaf], shards: Sequence[Shard], metadata: Mapping[str, str]
    ) -> FileSink:
        """A new temporary output for these tensors, cut into files like `shards`."""
        known = {leaf.name: leaf for leaf in everything}
        if self.kind == "npz":
            for leaf in everything:
                if leaf.spec.dtype == "bfloat16" or "\0" in leaf.name:
                    what = "is bfloat16" if leaf.spec.dtype == "bfloat16" else "has a NUL in its name"
                    raise ValueError(f"tensor {leaf.name!r} {what}, which .npz cannot hold: write .safetensors")
        elif "__metadata__" in known:  # an .npz may have it
            raise ValueError(
                "tensor '__metadata__' has a name that safetensors files keep for other things: write .npz"
            )
        if self.kind != "folder":
            shards = [Shard(self.path.name, tuple(name for shard in shards for name in shard.names))]
        metadata, headed = mark_result(metadata), self.kind != "npz"
        plans = [_Plan.of(s.filename, [known[name] for name in s.names], metadata, headed) for s in shards]
        return FileSink(self, leaves, plans)


@dataclass(frozen=True)
class _Plan:
    """One file to be written: its header and where each tensor's bytes begin."""

    filename: str
    header: bytes
    offsets: Mapping[str, int]
    size: int
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, filename: str, leaves: Sequence[Leaf], metadata: Mapping[str, str], with_header: bool) -> _Plan:
        """Wide dtypes first, so every tensor is aligned; otherwise in the order given."""
        leaves = sorted(leaves, key=lambda leaf: -storage(leaf.spec).itemsize)
        at, begins = 0, dict[str, int]()
        described: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        for leaf in leaves:
            begins[leaf.name] = at
            end = at + leaf.size * storage(leaf.spec).itemsize
            described[leaf.name] = {
                "dtype": FORMAT_NAMES[leaf.spec.dtype], "shape": list(leaf.spec.shape), "data_offsets": [at, end],
            }  # fmt: skip
            at = end
        text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode() if with_header else b""
        text += b" " * (-len(text) % 8)
        header = struct.pack("<Q", len(text)) + text if with_header else b""
        offsets = {name: len(header) + begin for name, begin in begins.items()}
        return cls(filename, header, offsets, len(header) + at, tuple(leaves))


@dataclass(frozen=True)
class _OutFile:
    """One file of the temporary output. A model may have more shards than a process may open at once."""

    path: Path

    def open(self) -> int:
        """A new descriptor, also for reading back."""
        return os.open(self.path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))


class FileSink:
    """The temporary output of one pass. `commit` makes it the output, `discard` removes it."""

    def __init__(self, output: Output, leaves: Sequence[Leaf], plans: Sequence[_Plan]) -> None:
        self._output, self._leaves, self._plans = output, tuple(leaves), plans
        self._draft = Draft(output.path, folder=output.kind == "folder")
        self._temporary: Path | None = self._draft.path
        self._pool = Pool()
        self._files: list[_OutFile] = []
        self._places: dict[str, tuple[_OutFile, int]] = {}
        self.extra_files: dict[str, bytes] = {}
        try:
            for plan in plans:
                file = _OutFile(self._temporary / plan.filename if output.kind == "folder" else self._temporary)
                file.path.touch(exist_ok=output.kind != "folder")
                self._files.append(file)
                with naming(output.path), self._pool.descriptor(file) as fd:
                    fill(fd, plan.size)
                    write_all(fd, plan.header, 0)
                self._places |= {name: (file, offset) for name, offset in plan.offsets.items()}
        except BaseException:
            self.discard()
            raise

    def put(self, leaf: int, start: int, stop: int, values: Host) -> None:
        """Round to the leaf's dtype and write in place."""
        what = self._leaves[leaf]
        rounded = np.empty(stop - start, storage(what.spec))
        narrow(values, rounded)
        self.put_whole(what, start, rounded)

    def put_whole(self, leaf: Leaf, start: int, values: Host) -> None:
        """Write values that have the leaf's dtype already."""
        file, offset = self._places[leaf.name]
        raw: Any = np.ascontiguousarray(values)
        if len(values):
            with naming(self._output.path), self._pool.descriptor(file) as fd:
                write_all(fd, memoryview(raw).cast("B"), offset + start * values.itemsize)

    def finish(self) -> Sequence[Any]:
        """The leaves as they were written, which can be sliced."""
        return [WrittenLeaf(leaf, self._pool, *self._places[leaf.name]) for leaf in self._leaves]

    def commit(self) -> Path:
        """Make it durable and rename it to the target: readers see either the old output or the new one."""
        with naming(self._output.path):
            return self._commit()

    def _commit(self) -> Path:
        assert self._temporary is not None
        temporary, target = self._temporary, self._output.path
        if self._output.kind == "npz":
            temporary = self._pack(temporary)
        lone_file = len(self._plans) == 1 and self._plans[0].filename in (ADAPTER, SINGLE)  # found by its name
        if self._output.kind == "folder" and not lone_file:
            self.extra_files[INDEX] = self._index()
        for name, content in self.extra_files.items():
            file = _OutFile(temporary / name)
            file.path.touch(exist_ok=False)
            self._files.append(file)
            with self._pool.descriptor(file) as fd:
                write_all(fd, content, 0)
        for file in self._files:
            with self._pool.descriptor(file) as fd:
                os.fsync(fd)
        self._pool.close()
        if self._output.kind == "folder":
            sync_folder(temporary)
            replace_folder(temporary, target)
        else:
            temporary.replace(target)
            remove(self._draft.path)  # of an archive, the values it was made of
        self._temporary = None
        self._draft.release()
        with contextlib.suppress(OSError):  # a folder that cannot be read; the output is there, and its content is safe
            sync_folder(target.parent)
        return target

    def discard(self) -> None:
        """Remove what was written, if it was not committed."""
        self._pool.close()
        if self._temporary is None:
            return
        self._temporary = None
        remove(self._draft.path)
        self._draft.release()

    def _index(self) -> bytes:
        total = sum(plan.size - len(plan.header) for plan in self._plans)
        weight_map = {name: plan.filename for plan in self._plans for name in plan.offsets}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        return (json.dumps(index, ensure_ascii=False, indent=2) + "\n").encode()

    def _pack(self, raw: Path) -> Path:
        """The raw values as an .npz: uncompressed, with a fixed date, so the same values give the same bytes."""
        (plan,), (file,) = self._plans, self._files
        packed = raw.with_suffix(".zip.tmp")
        with (
            zipfile.ZipFile(packed, "x", zipfile.ZIP_STORED, allowZip64=True) as archive,
            self._pool.descriptor(file) as fd,
        ):
            archive.comment = f"{MARK}: {MEANING}".encode()
            for leaf in plan.leaves:
                member = zipfile.ZipInfo(f"{leaf.name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                stored = np.dtype("?") if leaf.spec.kind == "bool" else storage(leaf.spec)
                with archive.open(member, "w", force_zip64=True) as stream:
                    described = {"descr": stored.str, "fortran_order": False, "shape": leaf.spec.shape}
                    np.lib.format.write_array_header_1_0(stream, described)
                    at, end = plan.offsets[leaf.name], plan.offsets[leaf.name] + leaf.size * stored.itemsize
                    while at < end:
                        piece = os.pread(fd, min(PIECE, end - at), at)
                        stream.write(piece)
                        at += len(piece)
        self._files = [_OutFile(packed)]
        return packed


@dataclass(frozen=True)
class WrittenLeaf:
    """A leaf in the temporary output: `written[start:stop]` reads it back as it is stored."""

    leaf: Leaf
    pool: Pool
    file: _OutFile
    offset: int

    def __getitem__(self, where: slice) -> Host:
        stored = storage(self.leaf.spec)
        values: Any = np.empty(where.stop - where.start, stored)
        buffer, at = memoryview(values).cast("B"), self.offset + where.start * stored.itemsize
        with self.pool.descriptor(self.file) as fd:
            while len(buffer):
                n = os.preadv(fd, [buffer], at)
                if n == 0:
                    raise OSError("the temporary output was cut short by someone else")
                buffer, at = buffer[n:], at + n
        return values
