"""The cells of a heatmap as a PNG image: a pixel or a column of pixels each, for maps with thousands of cells."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from honestly.show.chart import Grid
from honestly.show.palette import colours, shade

LEVELS = 100
HOLLOW = LEVELS + 1


def cells_png(values: Grid, theme: str = "light", *, tall: int = 1) -> bytes:
    """Values between 0 and 1 in the colours of a theme; NaN is hollow, and `tall` is the height of a cell."""
    levels = np.where(np.isnan(values), HOLLOW, np.round(LEVELS * np.clip(values, 0, 1)))
    scale = [shade(level / LEVELS, theme) for level in range(LEVELS + 1)]
    return png(levels.astype(np.uint8), [*scale, colours(theme)["hollow"]], tall=tall)


def png(pixels: npt.NDArray[np.uint8], palette: Sequence[str], *, tall: int = 1) -> bytes:
    """A PNG file of indices into a palette of `#rrggbb`; every row is drawn `tall` times."""
    height, width = pixels.shape
    lines = np.zeros((height, tall, 1 + width), dtype=np.uint8)
    lines[:, 0, 1:] = pixels  # filter 0: the bytes themselves
    lines[:, 1:, 0] = 2  # filter 2: the difference to the line above, which is none
    header = struct.pack(">IIBBBBB", width, height * tall, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", bytes.fromhex("".join(colour[1:] for colour in palette))),
        (b"IDAT", zlib.compress(lines.tobytes(), 6)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
