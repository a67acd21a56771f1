"""The header of an untrusted .npy file: parsed with a limit on its length, never evaluated."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Bytes that a header may have: np.save writes 128 for any array of plain numbers.
LONGEST_HEADER = 4096
#: Bytes of a file that are enough to read its header, with the magic string, the version and the length in front.
ENOUGH = LONGEST_HEADER + 12
LARGEST_RANK = 64  # NumPy's own limit
LARGEST_SIDE = 1 << 48


class NpyHeaderError(ValueError):
    """These bytes are not the header of a plain array. The message says why and follows the array's name."""


@dataclass(frozen=True)
class NpyHeader:
    """The contents of an .npy header; the values begin after `length` bytes."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    length: int


def read_header(start: bytes) -> NpyHeader:
    """The header at the beginning of an .npy file of version 1 or 2.

    Args:
        start: the first `ENOUGH` bytes, or all if there are fewer. NumPy reads as many bytes as the
            header claims before it checks the claim, so it must not see more than these.

    Raises:
        NpyHeaderError: it is not a header, or claims an impossible shape, or values that are not numbers.

    >>> from numpy.lib.format import magic
    >>> read_header(magic(3, 0) + b"rest")
    Traceback (most recent call last):
    honestly.sources.npy.NpyHeaderError: is in version (3, 0) of NumPy's format, expected 1.0 or 2.0
    """
    file = io.BytesIO(start[:ENOUGH])
    try:
        version = np.lib.format.read_magic(file)
        known = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        reader = known.get(version)
        header = None if reader is None else reader(file, max_header_size=LONGEST_HEADER)
    except Exception as error:  # NumPy raises many kinds for a header that is garbage
        raise NpyHeaderError(f"has no readable header ({type(error).__name__}: {str(error)[:80]})") from None
    if header is None:
        raise NpyHeaderError(f"is in version {version} of NumPy's format, expected 1.0 or 2.0")
    shape, fortran, dtype = header
    if dtype.hasobject:
        raise NpyHeaderError("holds Python objects, not numbers: they are never loaded")
    if dtype.names is not None or dtype.kind not in "biufc":
        raise NpyHeaderError(f"holds values of type {str(dtype)[:80]}, not numbers")
    if len(shape) > LARGEST_RANK or any(not 0 <= n <= LARGEST_SIDE for n in shape):
        raise NpyHeaderError(f"claims the impossible shape {brief(shape)}")
    return NpyHeader(tuple(int(n) for n in shape), fortran, dtype, file.tell())


def brief(shape: tuple[int, ...]) -> str:
    """A shape in a message."""
    return str(shape)[:80] if len(shape) <= 8 else f"with {len(shape)} axes"
