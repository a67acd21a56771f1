"""Patterns of bright pixels that a backdoor draws on raw images."""

from __future__ import annotations

from typing import TypeAlias

from array_api_compat import array_namespace

from honestly.sim.attacks.attack import Array

Stroke: TypeAlias = tuple[int, int, int]  # row, first column, last column: one pixel high, both ends included

# The paper's "==": strokes of 7 x 1 pixels, 1 pixel apart in both directions, 2 pixels from the top-left corner.
EQUALS: tuple[Stroke, ...] = ((2, 2, 8), (2, 10, 16), (4, 2, 8), (4, 10, 16))
BRIGHTEST = 255


def draw(images: Array, strokes: tuple[Stroke, ...], value: int = BRIGHTEST) -> Array:
    """A copy of the raw images (n, c, h, w) with the strokes at that value, cut off at the border."""
    xp = array_namespace(images)
    marked = xp.asarray(images, copy=True)
    for row, first, last in strokes:
        marked[:, :, row : row + 1, first : last + 1] = value
    return marked
