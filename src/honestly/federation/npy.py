"""Arrays as the bytes of an .npy file, which is how Flower sends them: read without a copy, written with one.

The bytes are untrusted. What the header claims is checked against the payload before anything is allocated;
objects (pickles) are refused.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from honestly.sources.npy import ENOUGH, NpyHeaderError, brief, read_header


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
    try:
        header = read_header(bytes(memoryview(data)[:ENOUGH]))
    except NpyHeaderError as error:
        raise BadArrayError(str(error)) from None
    shape, dtype = header.shape, header.dtype
    if not dtype.isnative:
        raise BadArrayError(f"is in a foreign byte order ({dtype.str})")
    claimed, sent = math.prod(shape) * dtype.itemsize, len(data) - header.length
    if claimed != sent:
        raise BadArrayError(f"claims shape {brief(shape)} of {dtype}, {claimed} bytes, but {sent} bytes were sent")
    flat = np.frombuffer(data, dtype=dtype, offset=header.length) if sent else np.empty(0, dtype)
    view = flat.reshape(shape, order="F" if header.fortran else "C")
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
