"""Updates of a buffer on disk: one safetensors file each, and a small file with the state; no pickles.

state.json                 the version, the updates that were averaged, the memory of the rule
update-000017.safetensors  one client's update, with the client, the version and a checksum in its metadata

Every file is written under a temporary name and renamed. Files that are damaged, or that were written by others, are
skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from honestly.arrays import Host
from honestly.files import sweep, write_atomically
from honestly.result import ClientId
from honestly.sources.checkpoints.header import LONGEST, Header, parse_header
from honestly.sources.checkpoints.tensors import DTYPES, FORMAT_NAMES
from honestly.sources.tree import UnusableError

STATE = "state.json"
NAME = re.compile(r"update-(\d{6,15})\.safetensors")
KEY = "honestly"  # of our entry in the metadata


@dataclass(frozen=True)
class WaitingUpdate:
    """One client's waiting update: arrays by path, the version that it started from, and its number of arrival."""

    client: ClientId
    version: int
    arrays: Mapping[str, Host]
    number: int
    size: float | None = None


class Shelf:
    """The folder of a buffer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, entry: WaitingUpdate, server_version: int) -> None:
        """Write an update. If that raises OSError, nothing of it is left."""
        write_atomically(self._path(entry.number), _pack(entry, server_version))

    def remove(self, number: int) -> None:
        """Remove an update. One that cannot be removed is older than the state and is not read again."""
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    def entries(self) -> Iterator[tuple[Path, WaitingUpdate | str, int]]:
        """Every update in the order of arrival, or why it cannot be read, and the version at its arrival."""
        files = sorted((int(m[1]), p) for p in self.folder.iterdir() if (m := NAME.fullmatch(p.name)))
        for number, path in files:
            try:
                yield (path, *_unpack(path, number))
            except (UnusableError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                yield path, str(error)[:300], 0

    def sweep(self) -> None:
        """Remove temporary files that a killed server left behind."""
        sweep(self.folder, "update-*.safetensors", STATE)

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state."""
        text = json.dumps(state, allow_nan=False)
        checked = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "state": state}
        write_atomically(self.folder / STATE, (json.dumps(checked) + "\n").encode())

    def read_state(self) -> dict[str, Any] | None:
        """The state; None if there is none. ValueError if the file is damaged."""
        try:
            raw = (self.folder / STATE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            value = json.loads(raw)
            state = cast("dict[str, Any]", value["state"])
            if hashlib.sha256(json.dumps(state).encode()).hexdigest() != value["sha256"]:
                raise ValueError("its checksum is wrong")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.folder / STATE} is damaged ({error})") from None
        return state

    def _path(self, number: int) -> Path:
        return self.folder / f"update-{number:06d}.safetensors"


def _pack(entry: WaitingUpdate, server_version: int) -> bytes:
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    # wide dtypes first, so every tensor is aligned
    for name, values in sorted(entry.arrays.items(), key=lambda item: -item[1].itemsize):
        raw = np.ascontiguousarray(values, dtype=DTYPES[FORMAT_NAMES[values.dtype.name]][1]).tobytes()
        described = {"dtype": FORMAT_NAMES[values.dtype.name], "shape": list(values.shape)}
        header[name] = {**described, "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    payload = b"".join(parts)
    about = {
        "client": entry.client,
        "version": entry.version,
        "size": entry.size,
        "server_version": server_version,
        "order": list(entry.arrays),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    own = json.dumps(about, sort_keys=True)
    sealed = {KEY: own, "sha256": hashlib.sha256(own.encode()).hexdigest()}
    text = json.dumps({"__metadata__": sealed, **header}).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + payload


def _unpack(path: Path, number: int) -> tuple[WaitingUpdate, int]:
    if path.is_symlink() or not path.is_file():
        raise UnusableError("is not a regular file")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(LONGEST, size - 8):
            raise UnusableError("is truncated, or not a safetensors file")
        header: Header = parse_header(file.read(length), size - 8 - length)
        own = header.metadata.get(KEY, "")
        if header.metadata.get("sha256") != hashlib.sha256(own.encode("utf-8", "replace")).hexdigest():
            raise UnusableError("was not written by a buffer, or its metadata was changed")
        about = json.loads(own)
        payload = file.read()
    if hashlib.sha256(payload).hexdigest() != about["sha256"]:
        raise UnusableError("has a wrong checksum: its values were changed")
    tensors = {entry.name: entry for entry in header.entries}
    if sorted(tensors) != sorted(about["order"]):
        raise UnusableError("has other tensors than its metadata says")
    arrays: dict[str, Host] = {}
    for name in about["order"]:
        entry = tensors[name]
        ours, stored, _ = DTYPES[entry.dtype]
        begin = entry.offset - 8 - length
        flat = np.frombuffer(payload, np.dtype(stored), entry.nbytes // np.dtype(stored).itemsize, begin)
        arrays[name] = flat.astype(ours, copy=False).reshape(entry.shape)
    client, version = about["client"], about["version"]
    if not isinstance(client, str | int) or isinstance(version, bool) or not isinstance(version, int):
        raise UnusableError("does not say which client it is from, or which version")
    return WaitingUpdate(client, version, arrays, number, about["size"]), int(about["server_version"])
