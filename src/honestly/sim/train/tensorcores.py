"""Which convolutions the tensor cores take (`tensorcores.cu`), and how their work is cut into warps and blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from honestly.kernels import is_off

WARPS = 4  # of a block that computes gradients
IMAGES = 8  # of a block or warp
BLOCKS = 528  # of the gradients of the weights: four for each processor of a large GPU
STRIPS = 2  # of columns, when the gradient of the input is computed
SHARED = 48 << 10  # bytes of shared memory that a block has without asking


def available(device: torch.device) -> bool:
    """Whether the device has tensor cores that know bfloat16, and HONESTLY_TENSOR_CORES=0 does not forbid them."""
    return not is_off("HONESTLY_TENSOR_CORES") and _capable(device)


@cache
def _capable(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


@dataclass(frozen=True)
class PooledTiles:
    """The products of one convolution, pooled by 2 x 2: K clients, B images (C, H, W), M filters (C, R, S)."""

    K: int
    B: int
    C: int
    H: int
    W: int
    M: int
    R: int
    S: int

    @property
    def fit(self) -> bool:
        """Whether the kernels can do it, and little of their tiles is padding."""
        pairs, columns = self.C * self.R, self._pooled[1]
        used = self.M / 16 * pairs / (16 * _parts(pairs, 16))
        filters, images = 4 * self.M * pairs * self.S, 32 * self.H * self.C * self.W  # bytes
        forward = 1024 * _parts(pairs, 16) * self.S + max(images, filters + 12)
        weights = 4096 * columns
        inward = 128 * _parts(self.C, 2) * self.R * self.S + filters
        registers = max(12 * columns + 8 * self.S, 4 * _parts(self.W, STRIPS) + 4 * columns)
        small = max(forward, weights, inward) <= SHARED and registers <= 112 and columns <= 8
        return used >= 0.5 and self.M <= 16 and self.B % 4 == 0 and small

    @property
    def defines(self) -> list[str]:
        """The macros of these tiles."""
        return [f"WARPS {WARPS}", f"STRIPS {STRIPS}", f"ROWS {self.rows}"]

    @property
    def _pooled(self) -> tuple[int, int]:
        return (self.H - self.R + 1) // 2, (self.W - self.S + 1) // 2

    @property
    def rows(self) -> int:
        """Warps of a block that goes forward."""
        return min(self._pooled[0], 5)

    @property
    def forward_grid(self) -> tuple[int]:
        """Blocks: eight images, whose pooled rows its warps share."""
        return (self.K * _parts(self.B, IMAGES),)

    def weight_grid(self, blocks: int) -> tuple[int, int]:
        """At least so many blocks if there is work for them, and into how many splits that cuts a client's sums."""
        sums = self.K * _parts(_parts(self.C * self.R + 1, 8), WARPS)
        splits = min(_parts(self.B, 16) * self._pooled[0], _parts(blocks, sums))
        return sums * splits, splits

    @property
    def input_grid(self) -> tuple[int]:
        """Blocks: a warp has eight slots and one strip of columns."""
        slots = _parts(self.C, 2) * self.R
        return (self.K * _parts(_parts(self.B, IMAGES) * _parts(slots, 8) * STRIPS, WARPS),)
