"""Small models: LeNet-5, and for little images an MLP and CNNs. Plain `nn.Sequential`, so all clients batch."""

from __future__ import annotations

from torch import nn


def lenet5(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """LeNet-5 for 32 x 32 images: two convolutions, three dense layers, ReLU; 61,706 parameters for one channel.

    >>> sum(p.numel() for p in lenet5(1, 32, 32, 10).parameters())
    61706
    """
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2), 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes),
    )  # fmt: skip


def cnn(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Two 3 x 3 convolutions with 8 and 16 channels and two dense layers: for images from 4 x 4 pixels on."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), 32), nn.ReLU(),
        nn.Linear(32, classes),
    )  # fmt: skip


def mlp(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """One hidden layer of 32 units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * width, 32), nn.ReLU(), nn.Linear(32, classes)
    )  # fmt: skip


def cnn_norm(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """`cnn` with BatchNorm, running statistics included, after each convolution."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), 32), nn.ReLU(),
        nn.Linear(32, classes),
    )  # fmt: skip
