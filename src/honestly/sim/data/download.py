"""Downloads with checksums from public mirrors; what is complete is kept, and the next mirror is tried on failure."""

from __future__ import annotations

import sys
from pathlib import Path

# MD5 as the data sets' publishers and torchvision give them; they guard against damage, not against forgery.
FILES: dict[str, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "fmnist": {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "cifar10": {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
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
    """Download the files of a data set into ``place``: complete files are kept, damaged ones fetched again."""
    import pooch

    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(
            f"cannot write the data set to {place}: {error}. Choose another folder with --data."
        ) from error
    if sys.stderr.isatty():
        print(f"downloading {name} to {place}", file=sys.stderr)
    for file, md5 in FILES[name].items():
        failures: list[str] = []
        for mirror in MIRRORS[name]:
            try:
                pooch.retrieve(mirror + file, known_hash=f"md5:{md5}", fname=file, path=place, progressbar=_progress())
                break
            except Exception as error:
                failures.append(f"  {mirror + file}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
        else:
            raise DownloadError(
                f"could not download dataset '{name}':\n" + "\n".join(failures) + "\n"
                "If this machine is offline, copy the files from another one and name their folder with --data or "
                f"HONESTLY_DATA (expected there: {'/'.join(place.parts[-2:])}/{file}), or use dataset=digits, which "
                "comes with the package."
            )
    if name == "cifar10":
        from honestly.sim.data.files import unpack_cifar10

        unpack_cifar10(place / "cifar-10-python.tar.gz", place)
    return place


def _progress() -> bool:
    """Pooch draws its progress bar with tqdm, if that is there and somebody looks."""
    import importlib.util

    return sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None
