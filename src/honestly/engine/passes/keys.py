"""Values of 16 bits as integers of the same order: they are ranked as they are, at half the cost of float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.arrays import LARGEST, Host, widen


def to_keys(bits: Host, out: Host) -> None:
    """Bits of float16 or bfloat16, as int16, to integers that rise with the values; and the other way round.

    Negative values rise as their bits fall: all but the sign are inverted.

    Example:
        >>> keys = np.empty(4, np.int16)
        >>> to_keys(np.array([-2.0, -1.0, 0.0, 1.0], np.float16).view(np.int16), keys)
        >>> keys.tolist()
        [-16385, -15361, 0, 15360]
    """
    np.right_shift(bits, 15, out=out)
    np.bitwise_and(out, 0x7FFF, out=out)
    np.bitwise_xor(out, bits, out=out)


def from_keys(keys: Sequence[Host], kind: np.dtype[Any]) -> list[Host]:
    """These rows as float32; uint16 means bfloat16."""
    rows: list[Host] = []
    for key in keys:
        bits, row = np.empty_like(key), np.empty(key.shape, np.float32)
        to_keys(key, bits)
        widen(bits.view(kind), row)
        rows.append(row)
    return rows


def are_finite(keys: Host, kind: np.dtype[Any]) -> bool:
    """False if a value is not finite, or so large that sums would overflow."""
    if kind == np.float16:
        largest = 0x7BFF
    else:
        largest = int(np.float32(LARGEST["float32"]).view(np.uint32) >> 16)
    return bool(keys.max() <= largest and keys.min() >= -largest - 1)
