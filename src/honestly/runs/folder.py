"""The folder of a run: how its files are written, and what a person is told when they cannot be."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from honestly.files import write_atomically
from honestly.runs.database import StoreError


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all. StoreError says what to do where that is not possible."""
    with remedies(path):
        write_atomically(path, content)


@contextmanager
def remedies(path: Path) -> Generator[None]:
    """The system's errors in writing to a path as sentences that say what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(remedy(error, path)) from error


def remedy(error: OSError, path: Path) -> str:
    """What a person can do."""
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"cannot write {path}: {why}. Free some space and run the same command again: it goes on where it stopped."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"cannot write {path}: {why}. Choose a folder that you may write to."
    return f"cannot write {path}: {why}"
