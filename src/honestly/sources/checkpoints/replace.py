"""Make an output appear in one step: reserve space, flush the data to disk, rename."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from honestly.sources.checkpoints.checkpoint import ADAPTER_CONFIG

# renameat2(2): exchange two names in one step; AT_FDCWD means that paths are relative to the current folder.
RENAME_EXCHANGE, AT_FDCWD = 2, -100
#: How often to look for a draft that no other process removes; then the file system is one that cannot tell.
ATTEMPTS = 5


class Draft:
    """A new hidden file or folder beside the target. A lock on it says that its process is alive.

    What processes left that were killed is removed: each of them was as large as the target.
    """

    def __init__(self, target: Path, *, folder: bool) -> None:
        sweep(target)
        for attempt in range(ATTEMPTS):
            self.path = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
            self.path.mkdir() if folder else self.path.touch(exist_ok=False)
            self._lock = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            if (_lock(self._lock) and _is_at(self._lock, self.path)) or attempt == ATTEMPTS - 1:
                return
            os.close(self._lock)  # another process took it for an old one before it was locked
            remove(self.path)

    def release(self) -> None:
        """Give the lock back, once the draft is gone."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove(draft: Path) -> None:
    """Remove a draft, and the archive that was made of it, as far as possible: another error may be on its way."""
    for path in (draft.with_suffix(".zip.tmp"), draft):
        with contextlib.suppress(OSError):  # not there, or a name that is too long with that ending
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def sweep(target: Path) -> None:
    """Remove the drafts of this target that no living process has locked."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError):  # the folder cannot be read
        present = list(target.parent.iterdir())
        for path in [path for path in present if name.fullmatch(path.name)]:
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    if _lock(fd, sure=True):
                        for left in [other for other in present if path.name in other.name]:
                            remove(left)
                finally:
                    os.close(fd)


def _lock(fd: int, *, sure: bool = False) -> bool:
    """Lock an open file; False if another process has locked it. Where files cannot be locked, True unless `sure`."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems
        return not sure
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


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
