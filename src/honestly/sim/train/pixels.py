"""The images of all clients on the device, as uint8; cropped, mirrored and normalised there, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Pixels:
    """Images and labels by sample number.

    Attributes:
        images: (N, C, H + 2 crop, W + 2 crop) uint8, on the device.
        rows: (S,) which image each sample shows (samples may share images: a flipped label is not a new image).
        labels: (S,) class of each sample.
        scale: (C,) and ``shift``: (C,): `x = pixel * scale + shift`, that is, `(pixel / 255 - mean) / std`.
        crop: padding already around each image, for random crops.
    """

    images: Tensor
    rows: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor
    crop: int = 0

    @classmethod
    def of(
        cls,
        images: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        crop: int = 0,
        device: torch.device | str = "cpu",
    ) -> Pixels:
        """Put the images on the device."""
        if crop:
            images = np.pad(images, ((0, 0), (0, 0), (crop, crop), (crop, crop)))
        scale = 1.0 / (255.0 * torch.tensor(std, dtype=torch.float64))
        shift = -torch.tensor(mean, dtype=torch.float64) / torch.tensor(std, dtype=torch.float64)
        return cls(
            images=torch.from_numpy(np.ascontiguousarray(images)).to(device),
            rows=torch.from_numpy(rows).to(device),
            labels=torch.from_numpy(labels).to(device),
            scale=scale.to(torch.float32).to(device),
            shift=shift.to(torch.float32).to(device),
            crop=crop,
        )

    @property
    def size(self) -> tuple[int, int, int]:
        """(C, H, W) of an image as the model sees it."""
        _, C, H, W = self.images.shape
        return C, H - 2 * self.crop, W - 2 * self.crop

    def batch(self, samples: Tensor, flips: Tensor | None = None, crops: Tensor | None = None) -> Tensor:
        """(n, C, H, W) uint8 images of these samples, cropped and mirrored."""
        rows = self.rows[samples]
        C, H, W = self.size
        if crops is None and flips is None:
            x = self.images[rows]
            p = self.crop
            return x[:, :, p : p + H, p : p + W] if p else x
        ys = torch.arange(H, device=rows.device).expand(len(rows), H)
        xs = torch.arange(W, device=rows.device).expand(len(rows), W)
        if flips is not None:
            xs = torch.where(flips[:, None], W - 1 - xs, xs)
        if crops is not None:
            ys, xs = ys + crops[:, :1], xs + crops[:, 1:]
        else:
            ys, xs = ys + self.crop, xs + self.crop
        flat = self.images.view(len(self.images), C, -1)
        columns = (ys[:, :, None] * self.images.shape[3] + xs[:, None, :]).view(len(rows), 1, H * W).expand(-1, C, -1)
        return flat[rows].gather(2, columns).view(len(rows), C, H, W)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(n, C, H, W) float32 from uint8 pixels."""
        return pixels.float().mul_(self.scale[:, None, None]).add_(self.shift[:, None, None])

    def batch_inner(self, pixels: Tensor, K: int, out: Tensor | None = None) -> Tensor:
        """(K, H, C, W, B) float32, the layout of `program`, from K B images (n, C, H, W)."""
        n, C, H, W = pixels.shape
        moved = pixels.view(K, n // K, C, H, W).permute(0, 3, 2, 4, 1)
        if out is None:
            out = torch.empty(moved.shape, dtype=torch.float32, device=pixels.device)
        out.copy_(moved)
        return out.mul_(self.scale[:, None, None]).add_(self.shift[:, None, None])
