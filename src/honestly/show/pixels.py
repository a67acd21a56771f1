"""PNG files: the cells of a heatmap, a pixel or a column of pixels each, and pictures for TensorBoard."""

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
    return palette_png(levels.astype(np.uint8), [*scale, colours(theme)["hollow"]], tall=tall)


def palette_png(pixels: npt.NDArray[np.uint8], palette: Sequence[str], *, tall: int = 1) -> bytes:
    """A PNG file of indices into a palette of `#rrggbb`; every row is drawn `tall` times."""
    height, width = pixels.shape
    lines = np.zeros((height, tall, 1 + width), dtype=np.uint8)
    lines[:, 0, 1:] = pixels  # filter 0: the bytes themselves
    lines[:, 1:, 0] = 2  # filter 2: the difference to the line above, which is none
    return _file(lines.reshape(height * tall, -1), width, 3, bytes.fromhex("".join(colour[1:] for colour in palette)))


def rgb_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of (height, width, 3) pixels."""
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    return _file(lines, width, 2)


def _file(lines: npt.NDArray[np.uint8], width: int, kind: int, palette: bytes = b"") -> bytes:
    """Lines of a filter and 8 bits per value; the kind says what a value is: 2 a colour's part, 3 an index."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, len(lines), 8, kind, 0, 0, 0))]
    if palette:
        chunks.append((b"PLTE", palette))
    chunks += [(b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
