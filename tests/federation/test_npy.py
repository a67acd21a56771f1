"""Untrusted bytes: arrays are read without a copy, and anything else is refused with a reason."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from honestly.federation.npy import BadArrayError, read_npy, write_npy


def npy_bytes(values: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, **options)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3), (2, 3, 5)])
def test_it_reads_what_numpy_writes_and_writes_what_numpy_reads(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    for array in (values, np.asfortranarray(values)):
        view = read_npy(npy_bytes(array))
        np.testing.assert_array_equal(view, array)
        assert view.dtype == array.dtype
        assert view.shape == array.shape
    assert write_npy(values) == npy_bytes(values)
    np.testing.assert_array_equal(read_npy(write_npy(values.T)), values.T)


def test_the_view_shares_memory_and_cannot_be_written() -> None:
    data = npy_bytes(np.arange(1000.0))
    view = read_npy(data)
    assert np.shares_memory(view, np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError):
        view[0] = 1


@given(st.binary(max_size=300), st.integers(0, 200))
def test_any_bytes_give_an_array_or_a_reason(noise: bytes, where: int) -> None:
    whole = npy_bytes(np.arange(12, dtype=np.float32).reshape(3, 4))
    for data in (noise, whole[:where] + noise, whole[:where] + noise + whole[where + len(noise) :]):
        with contextlib.suppress(BadArrayError):
            assert read_npy(data).nbytes <= len(data)


@pytest.mark.parametrize(
    "data", [npy_bytes(np.zeros(3, ">f8")), npy_bytes(np.zeros(3, [("a", "f4")])), npy_bytes(np.array(["x"]))]
)
def test_what_is_not_a_plain_native_number_is_refused(data: bytes) -> None:
    with pytest.raises(BadArrayError):
        read_npy(data)
