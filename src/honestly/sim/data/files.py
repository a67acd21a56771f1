"""MNIST, Fashion-MNIST and CIFAR-10 in the layouts in which people already have them, or downloaded."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from honestly.sim.data.dataset import Dataset, DatasetSource, Images, Labels
from honestly.sim.data.download import RemoteFile, fetch

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class FileSet:
    """A data set that is published as files, with everything that is specific to it.

    Attributes:
        size: channels, side of the images, training images, test images.
        folder: where its files are in the folder of the data sets.
        mirrors: addresses that end before a file's name.
        files: what is downloaded.
        mean, std, classes, flip: see `Dataset`.
        model: the default model.
    """

    name: str
    summary: str
    size: tuple[int, int, int, int]
    folder: str
    mirrors: tuple[str, ...]
    files: Mapping[str, RemoteFile]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    flip: bool = False
    model: str = "lenet5"

    @property
    def source(self) -> DatasetSource:
        """How the data set is listed."""
        return DatasetSource(
            self.name,
            self.summary,
            self.size,
            lambda folder, download: read(self.name, folder, download),
            lambda folder: find(self.name, folder),
            model=self.model,
            flip=self.flip,
        )


# Sizes and sums as the data sets' publishers and torchvision give them.
SETS: dict[str, FileSet] = {
    one.name: one
    for one in (
        FileSet(
            "mnist",
            "70,000 handwritten digits, 28 x 28",
            (1, 28, 60_000, 10_000),
            "MNIST/raw",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            {
                "train-images-idx3-ubyte.gz": RemoteFile(9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                "train-labels-idx1-ubyte.gz": RemoteFile(28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                "t10k-images-idx3-ubyte.gz": RemoteFile(1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                "t10k-labels-idx1-ubyte.gz": RemoteFile(4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
            },
            (0.1307,),
            (0.1307,),
            tuple(str(i) for i in range(10)),
        ),
        FileSet(
            "fmnist",
            "Fashion-MNIST: 70,000 articles of clothing, 28 x 28",
            (1, 28, 60_000, 10_000),
            "FashionMNIST/raw",
            (
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ),
            {
                "train-images-idx3-ubyte.gz": RemoteFile(26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                "train-labels-idx1-ubyte.gz": RemoteFile(29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                "t10k-images-idx3-ubyte.gz": RemoteFile(4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                "t10k-labels-idx1-ubyte.gz": RemoteFile(5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
            },
            (0.5,),
            (0.5,),
            ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
        FileSet(
            "cifar10",
            "60,000 colour photographs of ten kinds of things, 32 x 32",
            (3, 32, 50_000, 10_000),
            "cifar-10-batches-py",
            ("https://www.cs.toronto.edu/~kriz/",),
            {"cifar-10-python.tar.gz": RemoteFile(170_498_071, "c58f30108f718f92721af3b95e74349a")},
            (0.4914, 0.4822, 0.4465),
            (0.2023, 0.1994, 0.2010),
            ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
            flip=True,
            model="resnet18",
        ),
    )
}


def home(folder: Path | None = None) -> Path:
    """The folder of the data sets: the given one, else HONESTLY_DATA, else a folder in the user's cache."""
    named = os.environ.get("HONESTLY_DATA") if folder is None else folder
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(cache) if cache else Path.home() / ".cache") / "honestly"
    except RuntimeError:  # containers often run as users that the system does not know
        what = f"{named}: there is no such home folder" if named else "there is no home folder"
        raise FileNotFoundError(f"{what}; name a folder for data sets with --data or HONESTLY_DATA") from None


def find(name: str, folder: Path | None = None) -> Path | None:
    """The folder that holds the data set, or None. The files may also lie in ``folder`` itself."""
    top = home(folder)
    for place in (top / SETS[name].folder, top / Path(SETS[name].folder).parts[0], top):
        if name == "cifar10":
            if all((place / file).is_file() for file in BATCHES):
                return place
        elif all(_idx_path(place, file) is not None for file in IDX) and _belongs(name, place, top):
            return place
    return None


def _belongs(name: str, place: Path, top: Path) -> bool:
    """MNIST and Fashion-MNIST files have the same names: only a folder's name tells them apart."""
    return place != top or Path(SETS[name].folder).parts[0].lower() in str(top).lower()


def read(name: str, folder: Path | None = None, download: bool = True) -> Dataset:
    """The data set, downloaded if it is missing."""
    place = find(name, folder)
    if place is None:
        if not download:
            raise FileNotFoundError(
                f"dataset '{name}' is not in {home(folder)}: expected {home(folder) / SETS[name].folder}. "
                "Set HONESTLY_DATA or --data to the folder that has it, or allow the download."
            )
        place = fetch(SETS[name], home(folder) / SETS[name].folder)
    if name == "cifar10":
        return _cifar10(place)
    images, labels, test_images, test_labels = (_idx(place, file) for file in IDX)
    if len(images) != len(labels) or len(test_images) != len(test_labels):
        raise ValueError(f"{place}: images and labels differ in number; the files are not of one data set")
    one = SETS[name]
    return Dataset(
        name, images[:, None], labels.astype(np.int64), test_images[:, None], test_labels.astype(np.int64),
        one.mean, one.std, one.classes, flip=one.flip,
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
    one = SETS["cifar10"]

    def batch(file: str) -> tuple[Images, Labels]:
        path = place / file
        try:
            content = load_arrays(path.read_bytes())
            images, labels = np.asarray(content[b"data"]), np.asarray(content[b"labels"], dtype=np.int64)
            if images.dtype != np.uint8 or images.shape != (len(labels), 3072):
                raise ValueError(f"{len(labels)} labels, but images {images.dtype} {images.shape}")
            if len(labels) and not 0 <= labels.min() <= labels.max() < len(one.classes):
                raise ValueError(f"labels from {labels.min()} to {labels.max()}: there are {len(one.classes)} classes")
        except Exception as error:
            what = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is damaged or not a CIFAR-10 file ({what}): delete it and run again") from error
        return images.reshape(-1, 3, 32, 32), labels

    parts = [batch(file) for file in BATCHES[:5]]
    test_images, test_labels = batch(BATCHES[5])
    images, labels = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    return Dataset(one.name, images, labels, test_images, test_labels, one.mean, one.std, one.classes, flip=one.flip)


def unpack_cifar10(archive: Path, place: Path) -> None:
    """Unpack the batches of the official archive and nothing else."""
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            source = tar.extractfile(member) if member.isfile() else None
            if source is not None and (name in BATCHES or name == "batches.meta"):
                unfinished = place / f".{name}.part"
                unfinished.write_bytes(source.read())
                unfinished.replace(place / name)
