"""Writing the files of runs, with errors that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from honestly.files import write_atomically
from honestly.runs.database import StoreError


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file atomically. StoreError says what to do if that is not possible."""
    with remedies(path):
        write_atomically(path, content)


@contextmanager
def remedies(path: Path) -> Generator[None]:
    """The system's errors in writing to a path as sentences that say what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(_remedy(error, path)) from error


def _remedy(error: OSError, path: Path) -> str:
    why = error.strerror or str(error)
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        in_the_way = next((p for p in (path, *path.parents) if p.is_file()), path)
        return f"{in_the_way} is a file: choose another folder with --out"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"cannot write {path}: {why}. Free some space and run the same command again "
            "(a run resumes where it stopped)."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"cannot write {path}: {why}. Choose a folder that you may write to."
    return f"cannot write {path}: {why}"
