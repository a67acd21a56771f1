"""Arrays as the bytes of an .npy file, which is how Flower sends them: read without a copy, written with one.

The bytes come from strangers. The header is parsed with a bound on its length, never evaluated; what it claims is
checked against the payload before anything is allocated; objects (pickles) are refused.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

LONGEST_HEADER = 4096  # np.save writes 128 bytes for any array of plain numbers
LARGEST_RANK = 64  # NumPy's own limit


class BadArrayError(ValueError):
    """These bytes are not a plain numeric array; the message says why."""


def read_npy(data: bytes | bytearray | memoryview) -> npt.NDArray[Any]:
    """A read-only view of the array in `data`.

    Args:
        data: the bytes of an .npy file of version 1 or 2.

    Returns:
        A NumPy array that shares the memory of `data`.

    Raises:
        BadArrayError: the bytes are not one plain numeric array in native byte order.

    Example:
        >>> read_npy(write_npy(np.arange(6.0).reshape(2, 3)))[1, 2]
        np.float64(5.0)
    """
    shape, fortran, dtype, start = _header(bytes(memoryview(data)[: LONGEST_HEADER + 12]))
    if dtype.hasobject or dtype.names is not None or dtype.kind not in "biufc":
        raise BadArrayError(f"holds values of type {dtype}, not numbers")
    if not dtype.isnative:
        raise BadArrayError(f"is in a foreign byte order ({dtype.str})")
    if len(shape) > LARGEST_RANK or any(n < 0 for n in shape):
        raise BadArrayError(f"claims the impossible shape {_brief(shape)}")
    claimed, sent = math.prod(shape) * dtype.itemsize, len(data) - start
    if claimed != sent:
        raise BadArrayError(f"claims shape {_brief(shape)} of {dtype}, {claimed} bytes, but {sent} bytes were sent")
    flat = np.frombuffer(data, dtype=dtype, offset=start) if sent else np.empty(0, dtype)
    view = flat.reshape(shape, order="F" if fortran else "C")
    view.flags.writeable = False
    return view


def write_npy(values: npt.NDArray[Any]) -> bytes:
    """The bytes that `np.save` would write, at the cost of one copy of the values."""
    values = np.asarray(values)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": np.lib.format.dtype_to_descr(values.dtype), "fortran_order": False, "shape": values.shape}
    )
    return b"".join((head.getvalue(), np.ascontiguousarray(values).reshape(-1).view(np.uint8).data))


def _header(start_of_file: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(start_of_file)
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            read = np.lib.format.read_array_header_1_0
        elif version == (2, 0):
            read = np.lib.format.read_array_header_2_0
        else:
            raise BadArrayError(f"has format version {version}, not 1.0 or 2.0")
        shape, fortran, dtype = read(file, max_header_size=LONGEST_HEADER)
    except BadArrayError:
        raise
    except Exception as error:  # NumPy raises many kinds for a header that is garbage
        raise BadArrayError(f"has no readable header ({type(error).__name__}: {str(error)[:80]})") from None
    return shape, fortran, dtype, file.tell()


def _brief(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 8 else f"with {len(shape)} axes"
