"""Locks on folders: a second server that would write to the same folder gets an error when it starts."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from pathlib import Path

from honestly.files import sweep

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, the operator has to prevent two servers
    fcntl = None

#: the folders that this process writes to: descriptor of the lock, and the number of objects that use it
_locks: dict[str, tuple[int, int]] = {}


class FolderInUseError(OSError):
    """Another process writes to this folder."""


def claim(folder: Path, owner: object) -> None:
    """Lock the folder against other processes for as long as `owner` lives.

    The lock is on the folder itself and needs no file; the system releases it when the process ends, however it ends.
    Several objects of one process may share a folder. On a file system without locks there is no lock.

    Raises:
        FolderInUseError: another process holds the lock.
    """
    key = str(folder.resolve())
    if key in _locks:
        descriptor, users = _locks[key]
        _locks[key] = descriptor, users + 1
    else:
        descriptor = _lock(folder)
        if descriptor is None:
            return
        _locks[key] = descriptor, 1
        sweep(folder, "rounds.jsonl", "rounds.csv", "memory.json", "server.npz")
    weakref.finalize(owner, _let_go, key, os.getpid())


def _lock(folder: Path) -> int | None:
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise FolderInUseError(
                errno.EAGAIN,
                "another server writes to this folder: stop it, or use another folder for this one",
                str(folder),
            ) from None
        return None
    return descriptor


def _let_go(key: str, process: int) -> None:
    if process != os.getpid() or key not in _locks:
        return
    descriptor, users = _locks.pop(key)
    if users > 1:
        _locks[key] = descriptor, users - 1
    else:
        os.close(descriptor)


def _forget() -> None:
    """Release the locks in a forked child, which would otherwise hold them after its parent has died."""
    for descriptor, _ in _locks.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
