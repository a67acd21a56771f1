"""Data sets from their public mirrors: checked, continued after an interruption, with progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path

from honestly.sim.data.transfer import File, Progress, TransferError, part_of, transfer

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


def fetch(name: str, place: Path) -> Path:
    """Download the files of a data set: complete ones are kept, parts continued, damaged ones fetched again."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        for number, (file, wanted) in enumerate(FILES[name].items(), 1):
            if not wanted.matches(place / file):
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
    from honestly.sim.data.files import FOLDERS

    failures: list[str] = []
    for mirror in MIRRORS[name]:
        try:
            with shown(title, wanted.size) as progress:
                transfer(mirror + path.name, path, wanted, progress)
            return
        except TransferError as error:
            reason = "".join(c if c.isprintable() else "?" for c in str(error))[:200]
            failures.append(f"  {mirror + path.name}: {reason}")
    kept = "What has come is kept: the same command goes on from there. " if part_of(path).exists() else ""
    raise DownloadError(
        f"could not download dataset '{name}':\n" + "\n".join(failures) + f"\n{kept}"
        "If this machine is offline, copy the files from "
        f"another one and name their folder with --data or HONESTLY_DATA (expected there: "
        f"{FOLDERS[name]}/{path.name}), or use dataset=digits, which comes with the package."
    )


@contextlib.contextmanager
def shown(title: str, size: int) -> Generator[Progress]:
    """A bar with speed and time left on a terminal, one line in a log."""
    if not sys.stderr.isatty():
        print(f"downloading {title} ({size / 1e6:.1f} MB)", file=sys.stderr)
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (*Bars.get_default_columns()[:2], DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(f"downloading {title}", total=size)
        yield lambda done: bars.update(task, completed=done)
