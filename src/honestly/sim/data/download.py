"""Data sets from their public mirrors, by pooch: checked, tried again; a file appears whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RETRIES = 2  # after the first try of each mirror
TIMEOUT = 30.0  # seconds without a byte
PIECE = 1 << 18


@dataclass(frozen=True)
class File:
    """A file as it must be. The MD5 sum guards against damage, not against forgery."""

    size: int
    md5: str


# Sizes and sums as the data sets' publishers and torchvision give them.
FILES: dict[str, dict[str, File]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz": File(9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        "train-labels-idx1-ubyte.gz": File(28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        "t10k-images-idx3-ubyte.gz": File(1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        "t10k-labels-idx1-ubyte.gz": File(4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    },
    "fmnist": {
        "train-images-idx3-ubyte.gz": File(26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        "train-labels-idx1-ubyte.gz": File(29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        "t10k-images-idx3-ubyte.gz": File(4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        "t10k-labels-idx1-ubyte.gz": File(5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    },
    "cifar10": {"cifar-10-python.tar.gz": File(170_498_071, "c58f30108f718f92721af3b95e74349a")},
}
MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "fmnist": (
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
}


class DownloadError(OSError):
    """A data set is missing and could not be downloaded; the message says what to do."""


class WrongSizeError(Exception):
    """What a mirror sends is another file; it is not worth another try."""


def fetch(name: str, place: Path) -> Path:
    """Download the files of a data set: complete ones are kept, damaged ones fetched again."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        for number, (file, wanted) in enumerate(FILES[name].items(), 1):
            _from_a_mirror(name, place / file, wanted, f"{name}, file {number} of {len(FILES[name])}")
        if name == "cifar10":
            from honestly.sim.data.files import unpack_cifar10

            unpack_cifar10(place / "cifar-10-python.tar.gz", place)
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot write the data set to {place}: {error}. Free space there, or choose another folder with --data."
        ) from error
    return place


def _from_a_mirror(name: str, path: Path, wanted: File, title: str) -> None:
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")  # we say what is downloaded ourselves
    if path.is_file() and pooch.file_hash(str(path), alg="md5") == wanted.md5:
        return
    failures: list[str] = []
    for mirror in MIRRORS[name]:
        files = pooch.create(path.parent, mirror, registry={path.name: f"md5:{wanted.md5}"}, retry_if_failed=RETRIES)
        try:
            with shown(title, wanted.size) as progress:
                # "identity": a server must not unpack what is packed, the sum is that of the packed file
                options: Any = {"progressbar": progress, "headers": {"Accept-Encoding": "identity"}}
                downloader: Any = pooch.HTTPDownloader(chunk_size=PIECE, timeout=TIMEOUT, **options)
                files.fetch(path.name, downloader=downloader)
            return
        except (RequestException, ValueError, WrongSizeError) as error:
            reason = "".join(c if c.isprintable() else "?" for c in str(error))[:200]
            failures.append(f"  {mirror + path.name}: {reason}")
    from honestly.sim.data.files import FOLDERS

    raise DownloadError(
        f"could not download dataset '{name}':\n" + "\n".join(failures) + "\n"
        "If this machine is offline, copy the files from "
        f"another one and name their folder with --data or HONESTLY_DATA (expected there: "
        f"{FOLDERS[name]}/{path.name}), or use dataset=digits, which comes with the package."
    )


class Progress:
    """What pooch tells about a download; more bytes than the file has are refused before they fill the disk."""

    def __init__(self, size: int, bars: Any = None, task: Any = None) -> None:
        self._size, self._bars, self._task, self._done = size, bars, task, 0

    @property
    def total(self) -> int:
        """The size of the file."""
        return self._size

    @total.setter
    def total(self, announced: int) -> None:
        if announced not in (0, self._size):  # 0: the server does not say
            raise WrongSizeError(f"the server has a file of {announced:,} bytes: expected {self._size:,}")
        self.reset()

    def update(self, count: int) -> None:
        """So many bytes have come; the last piece is counted as a whole one."""
        self._done += count
        if self._done >= self._size + PIECE:
            raise WrongSizeError(f"the server sends more than {self._size:,} bytes: it is another file")
        if self._bars is not None:
            self._bars.update(self._task, completed=min(self._done, self._size))

    def reset(self) -> None:
        """From the start."""
        self._done = 0

    def close(self) -> None:
        """It is done."""


@contextmanager
def shown(title: str, size: int) -> Generator[Progress]:
    """A bar with speed and time left on a terminal, one line in a log."""
    if not sys.stderr.isatty():
        print(f"downloading {title} ({size / 1e6:.1f} MB)", file=sys.stderr)
        yield Progress(size)
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (*Bars.get_default_columns()[:2], DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield Progress(size, bars, bars.add_task(f"downloading {title}", total=size))
