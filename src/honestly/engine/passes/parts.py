"""Where the layers begin and end in a block of columns."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from honestly.engine.passes.plan import Block
from honestly.sources import Layer

#: For each leaf, (start, stop, layer) in the order of its columns.
Cuts: TypeAlias = Mapping[int, Sequence[tuple[int, int, int]]]


class Part(NamedTuple):
    """Columns start..stop of a block, which belong to one layer."""

    start: int
    stop: int
    layer: int


def cuts(layers: Sequence[Layer]) -> Cuts:
    """The bounds of the layers in every leaf."""
    spans_of: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for index, layer in enumerate(layers):
        for leaf, start, stop in layer.spans:
            spans_of[leaf].append((start, stop, index))
    return {leaf: sorted(spans) for leaf, spans in spans_of.items()}


def parts_of(block: Block, bounds: Cuts) -> list[Part]:
    """The block's columns by layer, in order; neighbours of one layer are one part."""
    parts: list[Part] = []
    for leaf, start, stop, offset in block.segments:
        spans = bounds[leaf]
        for first, last, layer in spans[max(0, bisect_right(spans, start, key=lambda span: span[0]) - 1) :]:
            if first >= stop:
                break
            low, high = max(first, start), min(last, stop)
            if low >= high:
                continue
            low, high = offset + low - start, offset + high - start
            if parts and parts[-1].layer == layer and parts[-1].stop == low:
                parts[-1] = Part(parts[-1].start, high, layer)
            else:
                parts.append(Part(low, high, layer))
    return parts
