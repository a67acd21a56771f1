"""MNIST, Fashion-MNIST and CIFAR-10 in the layouts in which people already have them, or downloaded."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from honestly.sim.data.dataset import Dataset, Images, Labels
from honestly.sim.data.download import fetch

FOLDERS = {"mnist": "MNIST/raw", "fmnist": "FashionMNIST/raw", "cifar10": "cifar-10-batches-py"}
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def home(folder: Path | None = None) -> Path:
    """The folder of the data sets: the given one, else HONESTLY_DATA, else a folder in the user's cache."""
    if folder is not None:
        return folder.expanduser()
    if named := os.environ.get("HONESTLY_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "honestly"


def find(name: str, folder: Path | None = None) -> Path | None:
    """The folder that holds the data set, or None. The files may also lie in ``folder`` itself."""
    top = home(folder)
    for place in (top / FOLDERS[name], top / Path(FOLDERS[name]).parts[0], top):
        if name == "cifar10":
            if all((place / file).is_file() for file in BATCHES):
                return place
        elif all(_idx_path(place, file) is not None for file in IDX) and _belongs(name, place, top):
            return place
    return None


def _belongs(name: str, place: Path, top: Path) -> bool:
    """MNIST and Fashion-MNIST files have the same names: only a folder's name tells them apart."""
    return place != top or Path(FOLDERS[name]).parts[0].lower() in str(top).lower()


def read(name: str, folder: Path | None = None, download: bool = True) -> Dataset:
    """The data set, downloaded if it is missing."""
    place = find(name, folder)
    if place is None:
        if not download:
            raise FileNotFoundError(
                f"dataset '{name}' is not in {home(folder)}: expected {home(folder) / FOLDERS[name]}. "
                "Set HONESTLY_DATA or --data to the folder that has it, or allow the download."
            )
        place = fetch(name, home(folder) / FOLDERS[name])
    if name == "cifar10":
        return _cifar10(place)
    images, labels, test_images, test_labels = (_idx(place, file) for file in IDX)
    mean, names = ((0.1307,), tuple(str(i) for i in range(10))) if name == "mnist" else ((0.5,), CLOTHES)
    if len(images) != len(labels) or len(test_images) != len(test_labels):
        raise ValueError(f"{place}: images and labels differ in number; the files are not of one data set")
    return Dataset(
        name, images[:, None], labels.astype(np.int64), test_images[:, None], test_labels.astype(np.int64),
        mean, mean, names,
    )  # fmt: skip


def _idx_path(place: Path, file: str) -> Path | None:
    for candidate in (place / file, place / f"{file}.gz", place / file.replace("-idx", ".idx")):
        if candidate.is_file():
            return candidate
    return None


def _idx(place: Path, file: str) -> Any:
    """An array in the IDX format: two zero bytes, type, number of axes, their lengths, the data."""
    path = _idx_path(place, file)
    assert path is not None
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, axes = struct.unpack(">HBB", raw[:4])
        shape = struct.unpack(f">{axes}I", raw[4 : 4 + 4 * axes])
        data = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes)
        if zero != 0 or kind != 8 or data.size != np.prod(shape, dtype=np.int64):
            raise ValueError("it is cut short or not an IDX file of bytes")
    except (OSError, EOFError, struct.error, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run again to download it") from error
    return data.reshape(shape).copy()


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled dictionaries of bytes and NumPy arrays, and refuses to load any other class or function."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Only what an array needs."""
        if (module_name, global_name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it wants to load {module_name}.{global_name}, which no image file needs")
        module_name = module_name.replace("numpy.core", "numpy._core")
        return super().find_class(module_name, global_name)


def load_arrays(raw: bytes) -> dict[Any, Any]:
    """A pickled dictionary of arrays; anything that could run code is refused."""
    return _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()


def _cifar10(place: Path) -> Dataset:
    def batch(file: str) -> tuple[Images, Labels]:
        path = place / file
        try:
            content = load_arrays(path.read_bytes())
            images, labels = np.asarray(content[b"data"]), np.asarray(content[b"labels"], dtype=np.int64)
            if images.dtype != np.uint8 or images.shape != (len(labels), 3072):
                raise ValueError(f"{len(labels)} labels, but images {images.dtype} {images.shape}")
            if len(labels) and not 0 <= labels.min() <= labels.max() < len(THINGS):
                raise ValueError(f"labels from {labels.min()} to {labels.max()}: there are {len(THINGS)} classes")
        except Exception as error:
            what = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is damaged or not a CIFAR-10 file ({what}): delete it and run again") from error
        return images.reshape(-1, 3, 32, 32), labels

    parts = [batch(file) for file in BATCHES[:5]]
    test_images, test_labels = batch(BATCHES[5])
    images, labels = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    return Dataset(
        "cifar10", images, labels, test_images, test_labels, mean, std, THINGS,
        flip=True,
    )  # fmt: skip


def unpack_cifar10(archive: Path, place: Path) -> None:
    """The batches of the official archive, nothing else of it."""
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            source = tar.extractfile(member) if member.isfile() else None
            if source is not None and (name in BATCHES or name == "batches.meta"):
                unfinished = place / f".{name}.part"
                unfinished.write_bytes(source.read())
                unfinished.replace(place / name)
