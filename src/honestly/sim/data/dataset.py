"""What a data set is, which ones there are, and how to get one into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from honestly.hints import unknown
from honestly.own import check_arguments, import_name, is_own

Images: TypeAlias = npt.NDArray[np.uint8]  # (n, channels, height, width), raw pixels
Labels: TypeAlias = npt.NDArray[np.int64]
Fit: TypeAlias = Literal["pad", "resize"]


@dataclass(frozen=True)
class Dataset:
    """Images as raw pixels, and what the paper does to them.

    Attributes:
        images, labels: the training set.
        test_images, test_labels: the test set, on which the server is evaluated.
        mean, std: normalisation of each channel, `(pixel / 255 - mean) / std`.
        flip: whether training images may be mirrored (a mirrored digit is not a digit).
    """

    name: str
    images: Images
    labels: Labels
    test_images: Images
    test_labels: Labels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    flip: bool = False

    @property
    def size(self) -> tuple[int, int, int]:
        """(channels, height, width) of the raw images."""
        _, C, H, W = self.images.shape
        return C, H, W


@dataclass(frozen=True)
class DatasetSource:
    """Where a data set comes from, what is in it, and how it is trained on unless an experiment says otherwise.

    Attributes:
        size: channels, side of the images in pixels, training images, test images.
        read: the data set from a folder (None: the usual one), downloaded if that is allowed.
        find: where it is on this machine.
        model, training: the default model, and local training where it differs from the paper's.
        flip: whether training images are mirrored at random.
    """

    name: str
    summary: str
    size: tuple[int, int, int, int]
    read: Callable[[Path | None, bool], Dataset]
    find: Callable[[Path | None], Path | None]
    model: str = "lenet5"
    training: Mapping[str, float] = field(default_factory=dict[str, float])
    flip: bool = False


def _digits(folder: Path | None, download: bool) -> Dataset:
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        images, labels = file["images"], file["labels"].astype(np.int64)
    pixels = np.round(images.astype(np.float64) * (255.0 / 16.0)).astype(np.uint8)[:, None]
    # every fifth image is a test image, so each writer is in both parts
    test = np.arange(len(labels)) % 5 == 4
    names = tuple(str(i) for i in range(10))
    return Dataset("digits", pixels[~test], labels[~test], pixels[test], labels[test], (0.3053,), (0.3761,), names)


def _list_sources() -> dict[str, DatasetSource]:
    from honestly.sim.data.files import SETS

    digits = DatasetSource(
        "digits",
        "1,797 handwritten digits, 8 x 8: comes with the package",
        (1, 8, 1438, 359),
        _digits,
        lambda folder: Path(__file__).with_name("digits.npz"),
        model="cnn",
        training={"epochs": 4, "batch": 16, "lr": 0.05},  # with few images: small batches and large steps
    )
    return {"digits": digits, **{name: one.source for name, one in SETS.items()}}


#: Every data set, for experiments, completion, `honestly datasets` and `honestly doctor`.
DATASETS: dict[str, DatasetSource] = _list_sources()


def load(name: str, folder: Path | str | None = None, *, download: bool = True) -> Dataset:
    """The data set of that name.

    Args:
        name: digits, mnist, fmnist, cifar10, or a function of your own that returns a `Dataset`:
            ``package.module:function`` or ``file.py:function``.
        folder: where the files are; by default the folder named by HONESTLY_DATA, else the user's cache.
        download: fetch what is missing from the public mirrors.

    >>> load("digits").images.shape
    (1438, 1, 8, 8)
    """
    if is_own(name):
        return _own(name)
    if name not in DATASETS:
        raise ValueError(unknown("dataset", name, DATASETS, ", or file.py:function of your own"))
    return DATASETS[name].read(None if folder is None else Path(folder), download)


def _own(name: str) -> Dataset:
    """What the user's function returns, checked: a wrong dtype or label would fail far from here."""
    make = import_name("dataset", name)
    check_arguments("dataset", name, make)
    data = make()
    if not isinstance(data, Dataset):
        raise ValueError(
            f"dataset '{name}' returned a {type(data).__name__}: it must return a honestly.sim.data.Dataset"
        )
    for part, images, labels in (
        ("images", data.images, data.labels),
        ("test_images", data.test_images, data.test_labels),
    ):
        if not isinstance(images, np.ndarray) or not isinstance(labels, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
            form = f"{type(images).__name__} and {type(labels).__name__}"
            raise ValueError(f"dataset '{name}': {part} and labels must be NumPy arrays, got {form}")
        if images.dtype != np.uint8 or images.ndim != 4:
            form = f"{images.dtype} of shape {images.shape}"
            raise ValueError(f"dataset '{name}': {part} must be uint8 (n, channels, height, width), got {form}")
        if len(images) != len(labels) or len(labels) == 0:
            raise ValueError(f"dataset '{name}': {len(images)} {part}, {len(labels)} labels; give one label per image")
        if labels.dtype != np.int64 or labels.min() < 0 or labels.max() >= len(data.classes):
            form = f"{labels.dtype} from {labels.min()} to {labels.max()}"
            raise ValueError(f"dataset '{name}': labels must be int64 in 0 .. {len(data.classes) - 1}, got {form}")
    if data.test_images.shape[1] != data.size[0]:
        raise ValueError(
            f"dataset '{name}': images have {data.size[0]} channels and test_images {data.test_images.shape[1]}; "
            "there must be as many"
        )
    if not len(data.mean) == len(data.std) == data.size[0]:
        form = f"{len(data.mean)} and {len(data.std)}"
        raise ValueError(
            f"dataset '{name}': mean and std need one entry for each of {data.size[0]} channels, got {form}"
        )
    if not (np.isfinite([*data.mean, *data.std]).all() and min(data.std) > 0):
        form = f"{tuple(data.mean)} and {tuple(data.std)}"
        raise ValueError(f"dataset '{name}': mean and std must be finite numbers, and std above 0, got {form}")
    return data


def prepare(images: Images, size: tuple[int, int], fit: Fit = "pad") -> Images:
    """The images at the size that a model wants.

    ``pad`` puts a border of zeros around them (the paper's text: 28 -> 32); images less than half as large as wanted
    are enlarged by a whole factor first. ``resize`` interpolates bilinearly (the authors' code).

    >>> prepare(np.ones((1, 1, 28, 28), np.uint8), (32, 32)).sum()
    np.uint64(784)
    """
    H, W = images.shape[2:]
    h, w = size
    if (h, w) == (H, W):
        return images
    if h < H or w < W:
        raise ValueError(f"images of {H} x {W} pixels do not fit a model for {h} x {w}: choose another model")
    if fit == "resize":
        return _bilinear(images, h, w)
    factor = min(h // H, w // W)
    if factor > 1:
        images = images.repeat(factor, axis=2).repeat(factor, axis=3)
        H, W = H * factor, W * factor
    top, left = (h - H) // 2, (w - W) // 2
    return np.pad(images, ((0, 0), (0, 0), (top, h - H - top), (left, w - W - left)))


def _bilinear(images: Images, h: int, w: int) -> Images:
    """Bilinear interpolation between pixel centres, rounded to whole values."""

    def weights(n: int, m: int) -> npt.NDArray[np.float32]:
        centre = np.clip((np.arange(m) + 0.5) * n / m - 0.5, 0, n - 1)
        low = np.floor(centre).astype(int)
        high = np.minimum(low + 1, n - 1)
        table = np.zeros((m, n), dtype=np.float32)
        table[np.arange(m), low] += (1 - (centre - low)).astype(np.float32)
        table[np.arange(m), high] += (centre - low).astype(np.float32)
        return table

    H, W = images.shape[2:]
    rows, columns = weights(H, h), weights(W, w)
    out = np.empty((*images.shape[:2], h, w), dtype=np.uint8)
    for start in range(0, len(images), 4096):
        part = images[start : start + 4096].astype(np.float32)
        out[start : start + 4096] = np.rint(rows @ part @ columns.T).astype(np.uint8)
    return out
