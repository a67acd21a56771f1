"""Data sets from their public mirrors, by pooch: checked, tried again; a file appears whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from honestly.bars import Bars

if TYPE_CHECKING:
    from honestly.sim.data.files import FileSet

RETRIES = 2  # after the first try of each mirror
TIMEOUT = 30.0  # seconds without a byte
PIECE = 1 << 18


@dataclass(frozen=True)
class RemoteFile:
    """A file as it must be. The MD5 sum guards against damage, not against forgery."""

    size: int
    md5: str


class DownloadError(OSError):
    """A data set is missing and could not be downloaded; the message says what to do."""


class WrongSizeError(Exception):
    """A mirror sends a file of another size: trying it again is useless."""


def fetch(data: FileSet, place: Path) -> Path:
    """Download the files of a data set: complete ones are kept, damaged ones fetched again."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        for number, (file, wanted) in enumerate(data.files.items(), 1):
            _from_a_mirror(data, place / file, wanted, f"{data.name}, file {number} of {len(data.files)}")
        if data.name == "cifar10":
            from honestly.sim.data.files import unpack_cifar10

            unpack_cifar10(place / "cifar-10-python.tar.gz", place)
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot write the data set to {place}: {error}. Free space there, or choose another folder with --data."
        ) from error
    return place


def _from_a_mirror(data: FileSet, path: Path, wanted: RemoteFile, title: str) -> None:
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")  # our own bar shows the download
    if path.is_file() and pooch.file_hash(str(path), alg="md5") == wanted.md5:
        return
    failures: list[str] = []
    for mirror in data.mirrors:
        files = pooch.create(path.parent, mirror, registry={path.name: f"md5:{wanted.md5}"}, retry_if_failed=RETRIES)
        try:
            with show_progress(title, wanted.size) as progress:
                # "identity": the checksum is that of the packed file, so the server must not unpack it
                options: Any = {"progressbar": progress, "headers": {"Accept-Encoding": "identity"}}
                downloader: Any = pooch.HTTPDownloader(chunk_size=PIECE, timeout=TIMEOUT, **options)
                files.fetch(path.name, downloader=downloader)
            return
        except (RequestException, ValueError, WrongSizeError) as error:
            reason = "".join(c if c.isprintable() else "?" for c in str(error))[:200]
            failures.append(f"  {mirror + path.name}: {reason}")
    raise DownloadError(
        f"could not download dataset '{data.name}':\n" + "\n".join(failures) + "\n"
        "If this machine is offline, copy the files from "
        f"another one and name their folder with --data or HONESTLY_DATA (expected there: "
        f"{data.folder}/{path.name}), or use dataset=digits, which comes with the package."
    )


class Progress:
    """The progress bar that pooch updates. A download that is too large is stopped before it fills the disk."""

    def __init__(self, title: str, size: int, bars: Bars) -> None:
        self._size, self._done = size, 0
        self._bars, self._bar = bars, bars.add(title, size)

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
        """Add received bytes; pooch counts the last piece as a full one."""
        self._done += count
        if self._done >= self._size + PIECE:
            raise WrongSizeError(f"the server sends more than {self._size:,} bytes: it is another file")
        self._bars.update(self._bar, done=min(self._done, self._size))

    def reset(self) -> None:
        """Start again."""
        self._done = 0

    def close(self) -> None:
        """Do nothing: `show_progress` removes the bar."""


@contextmanager
def show_progress(title: str, size: int) -> Generator[Progress]:
    """A bar with speed and time left on a terminal, one line in a log."""
    if not sys.stderr.isatty():
        print(f"downloading {title} ({size / 1e6:.1f} MB)", file=sys.stderr)
    with Bars(stderr=True, unit="bytes", left=True) as bars:
        yield Progress(f"downloading {title}", size, bars)
