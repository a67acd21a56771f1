"""Untrusted headers: every kind of invalid header is refused with its own reason; nothing outside the file is read."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load, save

from honestly.sources.checkpoints.files import File, Pool
from honestly.sources.checkpoints.header import LONGEST, Header, parse_header, read_header
from honestly.sources.tree import UnusableError

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def parse(header: Any, size: int = 8) -> Header:
    return parse_header(header if isinstance(header, bytes) else json.dumps(header).encode(), size)


def test_a_valid_header() -> None:
    found = parse({"__metadata__": {"format": "pt"}, "b": {**F32, "data_offsets": [8, 16]}, "a": F32}, 16)
    assert [entry.name for entry in found.entries] == ["a", "b"]  # in the order of their bytes
    assert found.metadata == {"format": "pt"}
    assert found.entries[1].offset - found.entries[0].offset == 8


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "begin with"),
        (b"[]", "begin with"),
        (b' {"a":1}', "begin with"),
        (b"{", "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"a": [0' + b',{"":[]}' * 300_000 + b"]}", "600002 lists and mappings, the limit is 500000"),
        (b'{"a":' + b"1" * 10_000 + b"}", "not valid JSON"),
        (b'{"\xff": 1}', "not UTF-8"),
        (b'{"\\ud800": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "not UTF-8"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}}', "occurs twice"),
        (b'{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}', "occurs twice"),
        ({"a": 3}, "not described"),
        ({"a": {**F32, "more": 1}}, "not described"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "not described"),
        ({"a": {**F32, "dtype": "F8_E4M3"}}, "has dtype 'F8_E4M3'"),
        ({"a": {**F32, "dtype": ["F32"]}}, "has dtype"),
        ({"a": {**F32, "shape": [-2]}}, "has shape"),
        ({"a": {**F32, "shape": [2.0]}}, "has shape"),
        ({"a": {**F32, "shape": [True, 2]}}, "has shape"),
        ({"a": {**F32, "shape": "2"}}, "has shape"),
        ({"a": {**F32, "shape": [2**62, 2**62]}}, "has shape"),
        ({"a": {**F32, "shape": [1] * 1000 + [2]}}, "has shape"),
        ({"a": {**F32, "data_offsets": [0, 16]}}, "outside of 0 to 8"),
        ({"a": {**F32, "data_offsets": [8, 0]}}, "outside of 0 to 8"),
        ({"a": {**F32, "data_offsets": [-8, 0]}}, "outside of 0 to 8"),
        ({"a": {**F32, "data_offsets": [0, 2**70]}}, "outside of 0 to 8"),
        ({"a": {**F32, "data_offsets": [0]}}, "outside of 0 to 8"),
        ({"a": {**F32, "data_offsets": [0, 4]}}, "needs 8"),
        ({"a": {**F32, "shape": [3]}}, "needs 12"),
        ({"a": F32, "b": F32}, "overlaps"),
        ({"a": {**F32, "shape": [1], "data_offsets": [4, 8]}}, "hole of 4 bytes"),
        ({"a": {**F32, "shape": [1], "data_offsets": [0, 4]}}, "does not match its header"),
        ({"__metadata__": {"a": 1}, "a": F32}, "__metadata__"),
        ({"__metadata__": [], "a": F32}, "__metadata__"),
    ],
)
def test_each_lie_has_its_reason(header: Any, reason: str) -> None:
    with pytest.raises(UnusableError, match=reason):
        parse(header)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "too few"),
        (b"\x01\x00\x00", "too few"),
        (struct.pack("<Q", 2**63) + b"{}", "says its header has"),
        (struct.pack("<Q", 3) + b"{}", "says its header has"),
        (struct.pack("<Q", 2**64 - 1), "says its header has"),
    ],
)
def test_a_header_longer_than_its_file(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnusableError, match=reason):
        read_header(File(Pool(), str(path)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "a pointer of Git LFS"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'}", "an .npy file: write an .npz file (np.savez)"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"<html><body>404 Not Found</body></html>", "a web page"),
        (b"PK\x03\x04\x14\x00\x00\x00", "a zip archive"),
    ],
)
def test_files_of_other_formats_are_recognised(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnusableError, match=re.escape(f"'x.safetensors' is not a safetensors file but {reason}")):
        read_header(File(Pool(), str(path)))


@pytest.mark.parametrize("length", [ord("<"), int.from_bytes(b"<h", "little"), int.from_bytes(b"PK", "little")])
def test_a_file_cut_short_is_not_taken_for_another_format(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(UnusableError, match=f"says its header has {length} bytes"):
        read_header(File(Pool(), str(path)))


def test_an_absurdly_long_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", 10**12))
        stream.truncate(10**12 + 8)  # a sparse file: it has the size that it says
    with pytest.raises(UnusableError, match=f"the limit is {LONGEST}"):
        read_header(File(Pool(), str(path)))


def test_many_equal_names_take_no_time() -> None:
    text = b"{" + b",".join(b'"%d":0' % i for i in range(200_000)) + b',"7":0}'
    with pytest.raises(UnusableError, match="'7' occurs twice"):
        parse(text)


def check_bounds(header: Header, size: int) -> None:
    """Check that the entries of an accepted header follow each other and lie within the file."""
    at = None
    for entry in header.entries:
        assert at is None or entry.offset == at
        at = entry.offset + entry.nbytes
    assert at is None or at <= size


VALID = save({"a": np.zeros((2, 3), np.float32), "b": np.ones(5, np.float16), "c": np.arange(3)}, {"format": "pt"})


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mutated_files_are_refused_or_in_bounds(data: st.DataObject) -> None:
    """Any bytes changed, cut or inserted: the answer is a reason or a header within the file, never another error.

    The format's own library decides what must be accepted.
    """
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        kind, at = data.draw(st.sampled_from("scid")), data.draw(st.integers(0, len(content)))
        if kind == "s" and at < len(content):
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "c":
            del content[at:]
        elif kind == "i":
            content[at:at] = data.draw(st.binary(max_size=8))
        else:
            del content[at : at + data.draw(st.integers(1, 8))]
    (length,) = struct.unpack("<Q", bytes(content[:8]).ljust(8, b"\0"))
    try:
        header = parse_header(bytes(content[8 : 8 + length]), len(content) - 8 - length)
    except UnusableError:
        try:
            load(bytes(content))
        except (SafetensorError, KeyError):  # KeyError: a dtype that NumPy does not have
            return
        pytest.fail("the format's own library reads it")
    else:
        check_bounds(header, len(content))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
sizes = st.integers(-1, 40) | st.sampled_from([2**31, 2**63, 2**64])
tensors = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "BOOL", "F8_E5M2", "f32", ""]),
        "shape": st.lists(sizes, max_size=4),
        "data_offsets": st.lists(sizes, min_size=1, max_size=3),
    }
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=6), tensors | json_values, max_size=4), st.integers(0, 64))
def test_invented_headers_are_refused_or_in_bounds(header: dict[str, Any], size: int) -> None:
    text = json.dumps(header).encode()
    try:
        found = parse_header(text, size)
    except UnusableError:
        return
    check_bounds(found, 8 + len(text) + size)
