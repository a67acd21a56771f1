"""Recordings of real training: one Gram matrix of the clients' updates per tensor, recorded once and attacked often.

A file (.npz, never pickled) holds courses of training by name. `NAME|rR`, (L, n, n) float32, has the inner products of
the updates `w_k - reference` of round R in each of L layers; `NAME|names` and `NAME|sizes` say which layers these are
and how many values each has; `NAME|rows` says what each row is: "honest", or by the name of a data attack what one of
the last clients sends when it trains on poisoned data. `NAME|left_out` (the last clients, whose updates were never
averaged) and `NAME|idle` (the first ones, who sent the model back unchanged) are numbers, 0 if absent. What lies above
the diagonals may be left 0.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from honestly.lazy import cached_property
from honestly.result import Float

HONEST = "honest"
#: The rows of old recordings, which do not name them: 20 clients, then clients 11 to 19 under two data attacks.
FIRST_FORM = (*(HONEST,) * 20, *("label_flip",) * 9, *("backdoor",) * 9)
KEY = re.compile(r"(?P<course>[\w.+-]{1,100})\|(?P<what>r\d{1,6}|[a-z_]{1,30})")
KNOWN = re.compile(r"r\d+|names|sizes|rows|left_out|idle")  # other arrays are ignored
MOST_LAYERS, MOST_ROWS, MOST_BYTES = 1000, 1000, 2**30


@dataclass(frozen=True)
class Course:
    """One training run: its layers and some of its rounds.

    Attributes:
        name: for tables.
        layers: the names of the tensors.
        sizes: (L,) how many values each has.
        rows: what each row of a Gram matrix is: "honest" first, then data attacks by name.
        rounds: by number, (L, n, n) float64.
        left_out: how many of the last clients were never averaged.
        idle: how many of the first clients did not train.
    """

    name: str
    layers: tuple[str, ...]
    sizes: npt.NDArray[np.int64]
    rows: tuple[str, ...]
    rounds: Mapping[int, Float]
    left_out: int = 0
    idle: int = 0

    @cached_property
    def clients(self) -> int:
        """The number of honest clients."""
        return self.rows.count(HONEST)

    @cached_property
    def poisoned(self) -> dict[str, npt.NDArray[np.intp]]:
        """By the name of a data attack, the rows of what the last clients send under it, in the clients' order."""
        labels = np.array(self.rows)
        return {name: np.flatnonzero(labels == name) for name in dict.fromkeys(self.rows) if name != HONEST}


def shipped_recording() -> Path:
    """The recording in the package: digits, with and without BatchNorm, early and late."""
    return Path(str(files("honestly.studies") / "digits-layers.npz"))


def is_recording(path: Path) -> bool:
    """Whether the file holds Gram matrices by layer (by the names in it alone)."""
    try:
        with zipfile.ZipFile(path) as file:
            return any(KEY.fullmatch(name.removesuffix(".npy")) for name in file.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def read(path: Path | str, *, rows: Sequence[str] | None = None) -> tuple[Course, ...]:
    """Read all courses of a file. It is checked, since it may come from a stranger.

    Args:
        path: the file.
        rows: what the rows are, for a file that does not say.
    """
    path = Path(path)
    parts: dict[str, dict[str, npt.NDArray[Any]]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
        if total > MOST_BYTES:
            raise ValueError(f"unpacked it has {total} bytes, at most {MOST_BYTES} are read")
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            for key in file.files:
                match = KEY.fullmatch(key)
                if match is None:
                    raise ValueError(f"'{key[:80]}' is not a name such as COURSE|r1 or COURSE|names")
                if KNOWN.fullmatch(match["what"]):
                    parts.setdefault(match["course"], {})[match["what"]] = np.asarray(file[key])
        return tuple(_course(name, arrays, rows) for name, arrays in parts.items())
    except (ValueError, EOFError, TypeError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        remedy = "make one with `honestly stress --record`"
        raise ValueError(f"{path} is not a recording of Gram matrices by layer ({error}); {remedy}") from error


def _course(name: str, arrays: dict[str, npt.NDArray[Any]], rows: Sequence[str] | None) -> Course:
    rounds = {int(key[1:]): _gram(f"{name}|{key}", value) for key, value in arrays.items() if key[1:].isdigit()}
    rounds = dict(sorted(rounds.items()))
    if not rounds:
        raise ValueError(f"{name}: has no rounds")
    shapes = {gram.shape for gram in rounds.values()}
    if len(shapes) != 1:
        raise ValueError(f"{name}: its rounds have different shapes, {sorted(shapes)}")
    L, n, _ = next(iter(shapes))
    layers = _texts(f"{name}|names", arrays.get("names"), L) or tuple(f"layer {i}" for i in range(L))
    labels = _texts(f"{name}|rows", arrays.get("rows"), n) or tuple(
        rows or (FIRST_FORM if n == len(FIRST_FORM) else ())
    )
    if len(labels) != n:
        raise ValueError(f"{name}: has {n} rows and does not say what they are")
    honest = labels.count(HONEST)
    if honest == 0 or labels[:honest] != (HONEST,) * honest:
        raise ValueError(f"{name}|rows: honest clients must come first")
    if "sizes" in arrays:
        sizes = arrays["sizes"]
        if sizes.shape != (L,) or sizes.dtype.kind not in "iu" or (sizes < 1).any() or (sizes > 2**40).any():
            raise ValueError(f"{name}|sizes: give {L} whole numbers of at least 1")
        sizes = sizes.astype(np.int64)
    else:
        sizes = np.full(L, 10**6)  # unknown: assume layers so wide that noise is orthogonal to everything
    counts = [_count(f"{name}|{key}", arrays.get(key), honest) for key in ("left_out", "idle")]
    return Course(name, layers, sizes, labels, rounds, *counts)


def _gram(key: str, value: npt.NDArray[Any]) -> Float:
    if value.ndim != 3 or value.shape[1] != value.shape[2] or value.dtype.kind != "f":
        raise ValueError(f"{key}: give floats of shape (L, n, n), not {value.dtype} {value.shape}")
    if not 1 <= value.shape[0] <= MOST_LAYERS or not 1 <= value.shape[1] <= MOST_ROWS:
        raise ValueError(f"{key}: has {value.shape[0]} layers of {value.shape[1]} rows")
    gram = value.astype(np.float64)
    if not np.isfinite(gram).all():
        raise ValueError(f"{key}: has values that are not finite")
    if not np.triu(gram, 1).any():  # half of a symmetric matrix is enough
        gram += np.tril(gram, -1).transpose(0, 2, 1)
    turned = gram.transpose(0, 2, 1)
    largest = np.abs(gram).max(axis=(1, 2), keepdims=True)
    if (np.abs(gram - turned) > 1e-4 * largest).any() or (gram.diagonal(0, 1, 2) < -1e-4 * largest[:, 0]).any():
        raise ValueError(f"{key} is not a Gram matrix: it is not symmetric, or has a negative square")
    return 0.5 * (gram + turned)


def _texts(key: str, value: npt.NDArray[Any] | None, n: int) -> tuple[str, ...]:
    if value is None:
        return ()
    if value.shape != (n,) or value.dtype.kind != "U":
        raise ValueError(f"{key}: give {n} texts")
    return tuple(str(text)[:200] for text in value)


def _count(key: str, value: npt.NDArray[Any] | None, most: int) -> int:
    if value is None:
        return 0
    if value.shape != () or value.dtype.kind not in "iu" or not 0 <= int(value) <= most:
        raise ValueError(f"{key}: give a whole number from 0 to {most}")
    return int(value)


def write(path: Path | str | BinaryIO, courses: Iterable[Course]) -> None:
    """Write the lower triangles as float32, compressed; equal courses give equal bytes."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for course in courses:
        name = course.name
        arrays[f"{name}|names"] = np.array(course.layers)
        arrays[f"{name}|sizes"] = course.sizes
        arrays[f"{name}|rows"] = np.array(course.rows)
        arrays[f"{name}|left_out"] = np.array(course.left_out)
        arrays[f"{name}|idle"] = np.array(course.idle)
        arrays |= {f"{name}|r{r}": np.tril(gram).astype(np.float32) for r, gram in course.rounds.items()}
    np.savez_compressed(path, allow_pickle=False, **arrays)
