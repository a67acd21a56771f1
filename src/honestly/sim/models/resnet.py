"""ResNet-18 for small images, at the usual and at half width, and ResNet-8 for tiny ones."""

from __future__ import annotations

from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int, *, statistics: bool, normalised: bool = True) -> None:
        super().__init__()

        def norm(width: int) -> nn.Module:
            return nn.BatchNorm2d(width, track_running_stats=statistics) if normalised else nn.Identity()

        self.residual = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), norm(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), norm(outside),
        )  # fmt: skip
        straight = stride == 1 and inside == outside
        self.shortcut: nn.Module = (
            nn.Identity()
            if straight
            else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), norm(outside))
        )

    def forward(self, x: Tensor) -> Tensor:
        """`relu(residual(x) + shortcut(x))`."""
        return nn.functional.relu(self.residual(x) + self.shortcut(x))


def _resnet(channels: int, classes: int, width: int, *, statistics: bool) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width, track_running_stats=statistics),
        nn.ReLU(),
    ]
    inside = width
    for level in range(4):
        outside = width << level
        for number in range(2):
            layers.append(ResidualBlock(inside, outside, 2 if level and number == 0 else 1, statistics=statistics))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def resnet18(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """The usual ResNet-18 for 32 x 32 images: widths 64 to 512, running BatchNorm statistics.

    >>> sum(p.numel() for p in resnet18(3, 32, 32, 10).parameters())
    11173962
    """
    return _resnet(channels, classes, 64, statistics=True)


def resnet18_half(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """The paper's code: widths 32 to 256, BatchNorm on the statistics of each batch, no buffers.

    >>> sum(p.numel() for p in resnet18_half(3, 32, 32, 10).parameters())
    2797610
    """
    return _resnet(channels, classes, 32, statistics=False)


def _resnet8(channels: int, classes: int, *, normalised: bool) -> nn.Module:
    first: list[nn.Module] = [nn.Conv2d(channels, 8, 3, 1, 1, bias=False)]
    first += [nn.BatchNorm2d(8)] if normalised else []
    blocks = [
        ResidualBlock(inside, outside, stride, statistics=True, normalised=normalised)
        for inside, outside, stride in ((8, 8, 1), (8, 16, 2), (16, 32, 2))
    ]
    return nn.Sequential(*first, nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))


def resnet8(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Three blocks of widths 8, 16 and 32 with running BatchNorm statistics: for images from 4 x 4 pixels on.

    >>> sum(p.numel() for p in resnet8(1, 8, 8, 10).parameters())
    19810
    """
    return _resnet8(channels, classes, normalised=True)


def resnet8_plain(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """`resnet8` without BatchNorm."""
    return _resnet8(channels, classes, normalised=False)
