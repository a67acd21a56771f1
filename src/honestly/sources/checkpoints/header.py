"""The header of a safetensors file, parsed and checked as untrusted input.

Layout: a little-endian u64, the header's length n; n bytes of JSON `{name: {dtype, shape, data_offsets}}`, which may
begin with `__metadata__`; then the tensors' bytes, back to back, without holes, to the end of the file.

Reference: https://huggingface.co/docs/safetensors (format), whose own reader is not used on untrusted files here.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from honestly.sources.checkpoints.files import File
from honestly.sources.tree import UnusableError, tensor_label

#: Bytes of the longest header read: about 80,000 tensors. The memory for parsing it is about ten times that.
LONGEST = 8_000_000
#: Lists and mappings in a header: three a tensor. Each takes up to a hundred times the memory of its two letters.
MOST_CONTAINERS = 500_000
#: Tensors of more dimensions, and longer ones than any file could hold, are refused.
MOST_DIMENSIONS, LARGEST_DIMENSION = 32, 1 << 48
#: Bytes of a value, by the format's name of its dtype. Narrower floats exist in the format and are not averaged.
ITEMSIZE = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
#: How files begin that are often given in place of a safetensors file, and what to do about them. A header as long as
#: these letters say would be longer than any that is read.
OTHER_FORMATS = {
    b"version https://git-lfs": "a pointer of Git LFS: fetch the file itself (git lfs pull)",
    b"\x93NUMPY": "an .npy file: write an .npz file (np.savez)",
    b"PK\x03\x04": "a zip archive: rename it to .npz or .pt if it is one of these",
    b"\x89HDF": "an HDF5 file: convert it to safetensors",
    b"GGUF": "a GGUF file: convert it to safetensors",
    b"<!DOCTYPE": "a web page: download the file itself",
    b"<!doctype": "a web page: download the file itself",
    b"<html": "a web page: download the file itself",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file: its dtype as the format names it, its shape, and where its bytes begin in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of all its values."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says it holds; the entries in the order of their bytes. `length` is that of its text."""

    entries: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    length: int


def read_header(file: File) -> Header:
    """The checked header of a safetensors file. Raises `UnusableError` with the first thing that is wrong."""
    if file.size < 8:
        raise UnusableError(f"{file.name!r} has {file.size} bytes, too few for a safetensors file")
    (length,) = struct.unpack("<Q", file.bytes(0, 8))
    if length > file.size - 8:
        start = file.bytes(0, min(file.size, 32))
        for beginning, what in OTHER_FORMATS.items():
            if start.startswith(beginning):
                raise UnusableError(f"{file.name!r} is not a safetensors file but {what}")
        raise UnusableError(f"{file.name!r} says its header has {length} bytes, but the file has {file.size}")
    if length > LONGEST:
        raise UnusableError(f"{file.name!r} has a header of {length} bytes, the limit is {LONGEST}")
    return parse_header(file.bytes(8, length), file.size - 8 - length)


def parse_header(text: bytes, data_size: int) -> Header:
    """Check the JSON text of a header against the number of bytes that follow it."""
    if not text.startswith(b"{"):
        raise UnusableError("its header does not begin with '{'")
    header = load_json(text, "its header")
    raw = header.pop("__metadata__", {})
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise UnusableError("its __metadata__ is not a mapping of text to text")
    start = 8 + len(text)
    entries: list[tuple[int, int, TensorEntry]] = []
    for name, tensor in header.items():
        entries.append(_entry(name, tensor, data_size, start))
    entries.sort(key=lambda entry: entry[:2])
    at = 0
    for begin, end, entry in entries:
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else f"leaves a hole of {begin - at} bytes before it"
            raise UnusableError(f"{tensor_label(entry.name)} {what}")
        at = end
    if at != data_size:
        raise UnusableError(f"its tensors end at byte {at} of {data_size}: the file does not match its header")
    return Header(tuple(entry for _, _, entry in entries), raw, len(text))


def _entry(name: str, tensor: Any, data_size: int, start: int) -> tuple[int, int, TensorEntry]:
    if not isinstance(tensor, dict) or set(tensor) != {"dtype", "shape", "data_offsets"}:
        raise UnusableError(f"{tensor_label(name)} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise UnusableError(
            f"{tensor_label(name)} has dtype {str(dtype)[:20]!r}, expected one of {', '.join(ITEMSIZE)}"
        )
    if not _are_sizes(shape) or len(shape) > MOST_DIMENSIONS or any(n > LARGEST_DIMENSION for n in shape):
        raise UnusableError(
            f"{tensor_label(name)} has shape {str(shape)[:80]}, expected up to {MOST_DIMENSIONS} dimensions "
            f"from 0 to {LARGEST_DIMENSION}"
        )
    if not _are_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_size:
        raise UnusableError(f"{tensor_label(name)} has data_offsets {str(offsets)[:80]} outside of 0 to {data_size}")
    begin, end = offsets
    entry = TensorEntry(name, dtype, tuple(shape), start + begin)
    if end - begin != entry.nbytes:
        raise UnusableError(
            f"{tensor_label(name)} has {end - begin} bytes, but {dtype} of shape {list(shape)} needs {entry.nbytes}"
        )
    return begin, end, entry


def _are_sizes(values: Any) -> bool:
    """True for a list of integers >= 0; True and False are integers in Python, but not sizes."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def load_json(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object from an untrusted file: UTF-8, unique names, no lone surrogates, no numbers of unlimited length."""
    containers = text.count(b"[") + text.count(b"{")
    if containers > MOST_CONTAINERS:
        raise UnusableError(f"{what} has {containers} lists and mappings, the limit is {MOST_CONTAINERS}")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        if not isinstance(value, dict):
            raise UnusableError(f"{what} is not a JSON object")
        for name in value:
            name.encode("utf-8")  # a lone surrogate, which JSON can write as \ud800, could never be written again
    except UnicodeError:
        raise UnusableError(f"{what} is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"{what} is not valid JSON: {str(error)[:100]}") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise UnusableError(f"the name {twice[:100]!r} occurs twice in its header")
    return result
