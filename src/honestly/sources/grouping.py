"""Which tensors are judged together: at most about a hundred layers, and the buffers apart from the parameters.

A layer is what a rule judges by itself. Up to `MOST_LAYERS` tensors are a layer each. Beyond that neighbours are joined
two by two: the tensors of one module first (weight, bias), then modules of one block (a convolution and its norm), the
smallest pair first, so large tensors stay alone as long as they can.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from honestly.printable import brief_repr
from honestly.sources.source import Layer, Leaf

#: Layers of parameters, and of buffers, which are not judged: more tensors than this are joined.
MOST_LAYERS, MOST_BUFFERS = 100, 40
#: Names come from clients, which are not trusted.
LONGEST_NAME = 200
#: What may be done with buffers, see `hn.aggregate`.
BUFFERS = ("follow", "judge", "ignore")
#: Last parts of the names of buffers in PyTorch and Keras, and the collection that Flax keeps them in.
BUFFER_NAMES = frozenset({"running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance"})
BUFFER_COLLECTION = "batch_stats"
AFTER_DOT = chr(ord(".") + 1)


#: Last parts of the names of running means, with those of the variances that belong to them.
VARIANCES = {"running_mean": "running_var", "moving_mean": "moving_variance"}


def variance_name(name: str) -> str | None:
    """The name of the running variance that belongs to a running mean of this name; None for any other tensor.

    Example:
        >>> variance_name("layer1.bn.running_mean"), variance_name("fc.weight")
        ('layer1.bn.running_var', None)
    """
    *path, last = _parts(name)
    other = "var" if last == "mean" and BUFFER_COLLECTION in path else VARIANCES.get(last)
    if other is None:
        return None
    before, _, after = name.rpartition(last)
    return before + other + after


def is_variance(name: str) -> bool:
    """Whether this is the name of a running variance.

    Example:
        >>> is_variance("layer1.bn.running_var"), is_variance("layer1.bn.running_mean")
        (True, False)
    """
    *path, last = _parts(name)
    return last in VARIANCES.values() or (last == "var" and BUFFER_COLLECTION in path)


class Piece(NamedTuple):
    """Columns start..stop of a leaf that belong to one tensor."""

    name: str
    leaf: int
    start: int
    stop: int


@dataclass(frozen=True)
class Buffers:
    """Which tensors are buffers, and what to do with them; `names` is None if they are recognised by name."""

    mode: str = "follow"
    names: frozenset[str] | None = None

    @classmethod
    def of(cls, buffers: Any) -> Buffers:
        """From the caller's argument: a mode, a torch module that has the buffers, or their names."""
        if isinstance(buffers, Buffers):
            return buffers
        if isinstance(buffers, str):
            if buffers not in BUFFERS:
                listed = ", ".join(map(repr, BUFFERS))
                raise ValueError(f"buffers is {buffers!r}; expected {listed}, a torch module, or the buffers' names")
            return cls(buffers)
        if hasattr(buffers, "named_buffers") and hasattr(buffers, "state_dict"):
            names = {name for name, _ in buffers.named_buffers()}
            positions = {f"[{i}]" for i, name in enumerate(buffers.state_dict()) if name in names}
            return cls("follow", frozenset(names | positions))  # by position for those who send lists of arrays
        if isinstance(buffers, Iterable) and not isinstance(buffers, bytes):
            return cls("follow", frozenset(str(name) for name in buffers))
        raise ValueError(
            f"buffers is {buffers!r}; expected 'follow', 'judge', 'ignore', a torch module, or their names"
        )

    def hold(self, name: str) -> bool:
        """Whether the tensor of this name is a buffer that is not judged."""
        if self.mode == "judge":
            return False
        if self.names is not None:
            return name in self.names
        parts = _parts(name)
        return parts[-1] in BUFFER_NAMES or BUFFER_COLLECTION in parts[:-1]


def layers_of(leaves: Sequence[Leaf], buffers: Buffers, sizes: Any = None) -> tuple[Layer, ...]:
    """The layers of a source with these leaves: every column is in exactly one.

    Args:
        leaves: the float tensors.
        buffers: which of them are not judged.
        sizes: for a source with a single leaf that holds several tensors one after the other: their sizes, or a
            mapping from name to size.
    """
    if sizes is None:
        return _tensors_as_layers(tuple(leaves), buffers)
    return _layers_of_pieces(_cut(leaves, sizes), buffers)


@lru_cache(maxsize=8)  # a server's next round has the same tensors
def _tensors_as_layers(leaves: tuple[Leaf, ...], buffers: Buffers) -> tuple[Layer, ...]:
    return _layers_of_pieces([Piece(leaf.name, i, 0, leaf.size) for i, leaf in enumerate(leaves) if leaf.size], buffers)


def _layers_of_pieces(pieces: Sequence[Piece], buffers: Buffers) -> tuple[Layer, ...]:
    flags = [buffers.hold(piece.name) for piece in pieces]
    judged = [piece for piece, is_buffer in zip(pieces, flags, strict=True) if not is_buffer]
    others = [piece for piece, is_buffer in zip(pieces, flags, strict=True) if is_buffer]
    if not judged:  # there must be something to judge by
        judged, others = others, []
    names = sorted(piece.name for piece in judged)
    layers = [_layer(group, names) for group in _group(judged, MOST_LAYERS)]
    names = sorted(piece.name for piece in others)
    for group in _group(others, MOST_BUFFERS):
        layers.append(_layer(group, names, follows=True, kept=buffers.mode == "ignore"))
    return tuple(sorted(layers, key=lambda layer: layer.spans[0]))


def _cut(leaves: Sequence[Leaf], sizes: Any) -> list[Piece]:
    if len(leaves) != 1:
        raise ValueError(
            f"layers is {brief_repr(sizes)}, but the updates hold {len(leaves)} tensors, which are the layers; "
            "leave layers out: it is for updates that are one flat array each"
        )
    if isinstance(sizes, Mapping):
        listed = [(str(name), size) for name, size in sizes.items()]
    elif isinstance(sizes, Iterable) and not isinstance(sizes, str | bytes):
        listed = [(f"[{i}]", size) for i, size in enumerate(sizes)]
    else:
        raise ValueError(f"layers is {brief_repr(sizes)}; expected the sizes of the tensors, in order or by name")
    pieces: list[Piece] = []
    start = 0
    for name, size in listed:
        try:
            stop = start + size.__index__()
        except (AttributeError, TypeError):
            raise ValueError(f"layers has the size {size!r} for {name!r}; expected an integer >= 0") from None
        if stop < start:
            raise ValueError(f"layers has the size {size!r} for {name!r}; expected an integer >= 0")
        if stop > start:
            pieces.append(Piece(name, 0, start, stop))
        start = stop
    if start != leaves[0].size:
        raise ValueError(f"layers has sizes that sum to {start}, but an update holds {leaves[0].size} values")
    return pieces


def _parts(name: str) -> list[str]:
    return re.split(r"[.\[/]", name.replace("]", ""))


def _group(pieces: Sequence[Piece], most: int) -> list[list[Piece]]:
    """Groups of neighbouring pieces. Pairs of equal cost are joined together, so equal blocks are grouped alike."""
    n = len(pieces)
    if n <= most:
        return [[piece] for piece in pieces]
    # a doubly linked list of runs, known by their first piece, and a heap of the joints between them
    after, before, last = list(range(1, n + 1)), list(range(-1, n - 1)), list(range(n))
    size = [piece.stop - piece.start for piece in pieces]
    paths = [_parts(piece.name) for piece in pieces]
    alive = [True] * n
    version = [0] * n

    def joint(left: int) -> tuple[int, int, int, int, int] | None:
        right = after[left]
        if right >= n:
            return None
        up = _steps_up(paths[last[left]], paths[right])
        return up, size[left] + size[right], left, version[left], version[right]

    heap = [cost for left in range(n) if (cost := joint(left)) is not None]
    heapq.heapify(heap)
    count, before_this = n, None
    while heap and (count > most or heap[0][:2] == before_this):
        cost = heapq.heappop(heap)
        left = cost[2]
        right = after[left] if alive[left] else n
        if right >= n or (version[left], version[right]) != cost[3:]:
            continue  # one of the two has grown since
        if count <= most and cost[:2] != before_this:
            break
        before_this = cost[:2]
        alive[right] = False
        last[left], after[left], size[left] = last[right], after[right], size[left] + size[right]
        version[left] += 1
        count -= 1
        if after[left] < n:
            before[after[left]] = left
        for end in (before[left], left):
            if end >= 0 and (new := joint(end)) is not None:
                heapq.heappush(heap, new)
    return [list(pieces[first : last[first] + 1]) for first in range(n) if alive[first]]


def _steps_up(a: Sequence[str], b: Sequence[str]) -> int:
    """How far up the tree of modules two tensors meet: 1 for two tensors of one module."""
    common = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        common += 1
    return max(len(a), len(b)) - common


def _layer(group: Sequence[Piece], among: Sequence[str], *, follows: bool = False, kept: bool = False) -> Layer:
    spans: list[tuple[int, int, int]] = []
    for _, leaf, start, stop in group:
        if spans and spans[-1][0] == leaf and spans[-1][2] == start:
            spans[-1] = (leaf, spans[-1][1], stop)
        else:
            spans.append((leaf, start, stop))
    return Layer(_name(group, among, "buffers" if follows else "tensors"), tuple(spans), follows, kept)


def _name(group: Sequence[Piece], among: Sequence[str], what: str) -> str:
    """A tensor's own name (its module's, if it is a lone weight), or the module that most of a group belongs to.

    `among` has the names of all tensors, sorted: those of one module stand together.
    """
    largest = max(group, key=lambda piece: piece.stop - piece.start).name
    module, _, tensor = largest.rpartition(".")
    theirs = among[bisect_left(among, module + ".") : bisect_left(among, module + AFTER_DOT)] if module else ()
    if len(group) == 1:
        return (module if tensor in ("weight", "kernel") and len(theirs) == 1 else largest)[:LONGEST_NAME]
    names = {piece.name for piece in group}
    if module and all(name in names for name in theirs):
        return f"{module[:LONGEST_NAME]} ({len(group)} {what})"
    return f"{group[0].name[:LONGEST_NAME]} to {group[-1].name[:LONGEST_NAME]} ({len(group)} {what})"
