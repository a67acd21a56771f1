"""Make an output appear in one step: reserve space, flush the data to disk, rename."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from honestly.sources.checkpoints.checkpoint import ADAPTER_CONFIG

# renameat2(2): exchange two names in one step; AT_FDCWD means that paths are relative to the current folder.
RENAME_EXCHANGE, AT_FDCWD = 2, -100


def fill(fd: int, size: int) -> None:
    """Reserve the bytes, so a full disk is noticed before the work starts."""
    os.ftruncate(fd, size)
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Add the path to an OSError that names no file, as errors of open descriptors do."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.strerror is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes at a position."""
    view = memoryview(data)
    while len(view):
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def check_replaceable(path: Path) -> None:
    """A folder is replaced whole; so the path must be free, or a folder that holds one checkpoint and nothing else."""
    if path.name in ("", "..") or path.is_mount():
        raise ValueError(f"out is {str(path)!r}, which cannot be replaced by another folder: name a new one inside it")
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"out is {str(path)!r}, an existing file without a known ending; use .safetensors or .npz")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"out is {str(path)!r}, a folder that cannot be written: name another one")
    ours = (".safetensors", ".safetensors.index.json")
    entries = sorted(path.iterdir())
    for entry in entries:
        if entry.is_dir() or not (entry.name.endswith(ours) or entry.name == ADAPTER_CONFIG):
            raise ValueError(
                f"out is {str(path)!r}, a folder that also holds {entry.name[:100]!r} and would be replaced whole: "
                "name a new folder"
            )
    models = [entry.name for entry in entries if entry.name.endswith(".safetensors")]
    indexes = [entry for entry in entries if entry.name.endswith(".json") and entry.name != ADAPTER_CONFIG]
    if len(indexes) > 1 or (len(models) > 1 and not (indexes and set(models) <= _shards(indexes[0]))):
        first, second, *_ = [entry.name for entry in indexes] if len(indexes) > 1 else models
        raise ValueError(
            f"out is {str(path)!r}, a folder with several models ({first[:60]!r}, {second[:60]!r}), which would be "
            "replaced whole: name a new folder, or a .safetensors file in this one"
        )


def _shards(index: Path) -> set[str]:
    """The files that an index names; none if it cannot be read."""
    try:
        return set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def replace_folder(new: Path, target: Path) -> None:
    """Replace a folder by another, in one step where the system can, and remove the old one."""
    try:
        new.rename(target)  # nothing there, or an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if not _exchange(new, target):
        # No exchange on this system: for a moment the old folder has its name with .old at the end.
        old = new.with_suffix(".old")
        target.rename(old)
        new.rename(target)
        new = old
    shutil.rmtree(new, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0
