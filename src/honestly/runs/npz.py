"""Plain arrays from .npz files that may be damaged or made by a stranger."""

from __future__ import annotations

import zipfile
import zlib
from typing import IO, Any

import numpy as np

DAMAGE = (ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def read_npz(file: IO[bytes]) -> dict[str, Any]:
    """The arrays of an .npz file by name. ValueError if it is damaged or something else; pickles are refused."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except DAMAGE as error:
        raise ValueError(f"it is not an .npz file of plain arrays ({type(error).__name__}: {error})") from error
