"""Which convolutions the tensor cores take (`tensorcores.cu`), and how their work is cut into warps and blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

WARPS = 4  # of a block
IMAGES = 8  # of a warp
SHARED = 48 << 10  # bytes of shared memory that a block has without asking


@cache
def available(device: torch.device) -> bool:
    """Whether the device has tensor cores that know TF32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


@dataclass(frozen=True)
class Tiles:
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
        pairs = self.C * self.R
        used = self.M / (16 * _parts(self.M, 16)) * pairs / (8 * _parts(pairs, 8))
        forward = 512 * _parts(pairs, 8) * self.S + 512 * WARPS * (2 * self.strip + self.S - 1)
        inward = 1024 * _parts(self.M, 8) * self.S + 32 * WARPS * self.W * (16 // self.R * self.R)
        small = self.W <= 16 and self.R <= 8 and self.S <= 6 and max(forward, inward) <= SHARED
        return used >= 0.5 and self.B % 4 == 0 and small

    @property
    def strip(self) -> int:
        """Pooled columns of a warp on its way forward: at most five, so that their sums fit registers."""
        return _parts(self._pooled[1], _parts(self._pooled[1], 5))

    @property
    def share(self) -> int:
        """Tiles of eight pairs (channel, row) whose weights' gradient a warp adds up; the bias is one more pair."""
        return min(_parts(self.C * self.R + 1, 8), 20 // self.S)

    @property
    def defines(self) -> list[str]:
        """The macros of these tiles."""
        return [f"STRIP {self.strip}", f"SHARE {self.share}"]

    @property
    def _pooled(self) -> tuple[int, int]:
        return (self.H - self.R + 1) // 2, (self.W - self.S + 1) // 2

    @property
    def forward_grid(self) -> tuple[int, int]:
        """Blocks: a warp has 16 channels of a strip of a pooled row."""
        h, w = self._pooled
        units = _parts(self.B, IMAGES) * h * _parts(w, self.strip)
        return self.K * _parts(units, WARPS), _parts(self.M, 16)

    def weight_grid(self, blocks: int) -> tuple[int, int]:
        """At least so many blocks if there is work for them, and into how many splits that cuts a client's sums."""
        sums = self.K * _parts(self.M, 16) * _parts(_parts(self.C * self.R + 1, 8), self.share)
        units = _parts(self.B, IMAGES) * 2 * self._pooled[0]
        splits = min(_parts(units, WARPS), _parts(blocks, sums))
        return sums * splits, splits

    @property
    def input_grid(self) -> tuple[int]:
        """Blocks: a warp has 16 // R channels."""
        return (self.K * _parts(self.C, 16 // self.R) * _parts(_parts(self.B, IMAGES), WARPS),)
