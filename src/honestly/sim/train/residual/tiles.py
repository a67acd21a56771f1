"""How the work of `convolve.cu` and `weights.cu` is cut into tiles and phases, and the memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from honestly.lazy import cached_property
from honestly.sim.train.residual.layout import NormalisedConvolution, ResidualNetwork

BLOCKS = (
    26  # of a client, for the gradient of filters: those of 20 clients are whole waves of a GPU with 132 processors
)


@dataclass(frozen=True)
class Tiles:
    """A plane of positions cut into tiles, as in `tiles.cu`, and what a filter sees of the source.

    A tile has ``warps`` x ``rows`` x 16 positions.
    """

    plane: int
    source: int
    extent: int
    stride: int = 1
    step: int = 1
    padding: int = 0
    warps: int = 4
    rows: int = 4

    @property
    def positions(self) -> int:
        """Positions of a tile."""
        return 16 * self.rows * self.warps

    @property
    def several(self) -> int:
        """Images of a tile."""
        return max(1, self.positions // self.plane**2)

    @property
    def an_image(self) -> int:
        """Tiles of an image."""
        return max(1, self.plane**2 // self.positions)

    def blocks(self, outs: int) -> int:
        """Blocks of `convolve.cu` that a processor's registers hold: sums, three taps of the filters, and the rest."""
        registers = self.rows * outs // 2 + outs * 3 // 4 + 40
        return max(1, 65536 // (32 * self.warps * registers))

    def number(self, B: int) -> int:
        """Tiles of B images."""
        return -(-B // self.several) * self.an_image

    @cached_property
    def seen(self) -> int:
        """Places that a tile sees."""
        rows = self.plane if self.several > 1 else self.positions // self.plane
        height, width = ((n - 1) * self.stride + self.extent for n in (rows, self.plane))
        return self.several * height * width

    @property
    def defines(self) -> list[str]:
        """The macros of `tiles.cu`."""
        return [
            "TILED", f"TILE_WARPS {self.warps}", f"PLANE_H {self.plane}", f"PLANE_W {self.plane}",
            f"SOURCE_H {self.source}", f"SOURCE_W {self.source}", f"EXTENT {self.extent}", f"STRIDE {self.stride}",
            f"LOAD_STEP {self.step}", f"PADDING {self.padding}", f"ROW_TILES {self.rows}",
        ]  # fmt: skip


def tiles_forward(c: NormalisedConvolution) -> Tiles:
    """What a convolution's output sees of its input."""
    if c.extent == 1:
        return Tiles(c.side, c.side * c.stride, 1, step=c.stride)
    rows = 2 if c.stride == 2 else 4  # what a stride of 2 sees is large, so the tile is small
    return Tiles(c.side, c.side * c.stride, 3, stride=c.stride, padding=1, rows=rows)


def tiles_of_weights(c: NormalisedConvolution) -> Tiles:
    """What the gradient of the filters sees at once."""
    return replace(tiles_forward(c), rows=2)


def tiles_back(c: NormalisedConvolution) -> Tiles:
    """What a convolution's input, or every second of its rows and columns, sees of its output."""
    return Tiles(c.side, c.side, 2) if c.stride == 2 else Tiles(c.side, c.side, 3, padding=1)


def outs_of(channels: int) -> int:
    """Output channels of a block."""
    return min(channels, 64)


@dataclass(frozen=True)
class Phases:
    """How `convolve.cu` goes through its sum: 32 channels and ``taps`` taps at a time, fetched ``depth`` ahead."""

    taps: int
    slot_taps: int
    depth: int
    seen_slots: int

    @classmethod
    def of(cls, taps: int, channels: int, *, halved: bool = False, stride: int = 1) -> Phases:
        """Three rows of three taps each, or all taps that there are; as deep as two blocks of a processor can be."""
        if taps == 9 and not halved:
            return cls(3, 3, 2 if stride == 1 else 1, min(2, channels // 32))
        return cls(taps, 4 if halved else taps, 1, 2)

    @property
    def defines(self) -> list[str]:
        """The macros."""
        return [
            f"PHASE_TAPS {self.taps}", f"SLOT_TAPS {self.slot_taps}", f"DEPTH {self.depth}",
            f"SEEN_SLOTS {self.seen_slots}",
        ]  # fmt: skip

    def shared_bytes(self, tiles: Tiles, outs: int, many: int) -> int:
        """Bytes of shared memory: what is multiplied, then the results and their sums."""
        factors = self.seen_slots * tiles.seen * 64 + (self.depth + 1) * self.slot_taps * outs * 64
        return max(factors, tiles.positions * (outs * 2 + 16) + 32 * tiles.warps * many * 8 * 4)


def gradient_bytes(c: NormalisedConvolution) -> int:
    """Bytes of shared memory: what a tile sees, and the gradient there."""
    tiles = tiles_of_weights(c)
    return 2 * (tiles.seen * 64 + tiles.positions * outs_of(c.outside) * 2)


def parts_size(K: int, B: int, c: NormalisedConvolution) -> int:
    """Numbers that `weight_gradient` keeps before they are added up."""
    splits = splits_of(B, c)
    return K * splits * c.outside * c.extent**2 * c.inside if splits > 1 else 0


def splits_of(B: int, c: NormalisedConvolution) -> int:
    """Into how many sums a filter's gradient is cut; not by the number of clients, on which no result depends."""
    products = c.outside // outs_of(c.outside) * (c.inside // 32)
    return max(1, min(BLOCKS // products, tiles_of_weights(c).number(B)))


def sums_size(K: int, B: int, c: NormalisedConvolution) -> int:
    """Numbers that the sums of a convolution take, forward, backward, and those of a head behind it."""
    forward = tiles_forward(c).number(B) * 2 * c.outside
    backward = tiles_back(c).number(B) * (4 if c.stride == 2 else 1) * 3 * c.inside
    return K * max(forward, backward, B * 3 * c.outside)


def most_bytes(network: ResidualNetwork) -> int:
    """The most shared memory that a block of any kernel asks for."""
    return max(
        bytes_
        for c in network.convolutions
        for bytes_ in (
            Phases.of(c.extent**2, c.inside, stride=c.stride).shared_bytes(tiles_forward(c), outs_of(c.outside), 2),
            Phases.of(9, c.outside, halved=c.stride == 2).shared_bytes(tiles_back(c), outs_of(c.inside), 3),
            gradient_bytes(c),
        )
    )
