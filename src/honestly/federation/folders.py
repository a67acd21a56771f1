"""A folder belongs to one server at a time: a second one that would write there is told so before it does harm."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: two servers there are the operator's own care
    fcntl = None

#: folders that this process writes to: descriptor of the lock and how many of our objects use it
_held: dict[str, tuple[int, int]] = {}


class FolderInUseError(OSError):
    """Another process writes to this folder."""


def claim(folder: Path, owner: object) -> None:
    """Keep other processes from claiming the folder for as long as `owner` lives.

    The lock is on the folder itself and needs no file; the system drops it when the process ends, however it ends.
    Within one process several objects may share a folder. File systems without locks are used without one.

    Raises:
        FolderInUseError: another process has it.
    """
    key = str(folder.resolve())
    if key in _held:
        descriptor, users = _held[key]
        _held[key] = descriptor, users + 1
    else:
        descriptor = _lock(folder)
        if descriptor is None:
            return
        _held[key] = descriptor, 1
        _sweep(folder)
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
                "another server writes to this folder: stop it, or give this one a folder of its own",
                str(folder),
            ) from None
        return None
    return descriptor


def _sweep(folder: Path) -> None:
    """Remove temporary files of a history that a server left behind which was killed while it wrote."""
    for name in ("rounds.jsonl", "rounds.csv", "memory.json", "server.npz"):
        for path in folder.glob(f".{name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _let_go(key: str, process: int) -> None:
    if process != os.getpid() or key not in _held:
        return
    descriptor, users = _held.pop(key)
    if users > 1:
        _held[key] = descriptor, users - 1
    else:
        os.close(descriptor)


def _forget() -> None:
    """A forked child has its parent's descriptors, and would keep its folders locked after the parent's death."""
    for descriptor, _ in _held.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
