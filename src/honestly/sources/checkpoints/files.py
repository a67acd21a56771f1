"""Read untrusted files: regular files only, by position, never past the end, and not if they changed."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from honestly.sources.tree import UnusableError

# Files held open for good, and others opened and closed as they are needed: K clients of many shards each would
# exhaust the process's descriptors.
MOST_HELD, MOST_OPEN = 256, 64


def affordable(least: int = 8) -> tuple[int, int]:
    """How many files to keep open, and how many more to open at a time: half of what this process may open."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST_HELD, MOST_OPEN
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MOST_HELD, MOST_OPEN
    return min(MOST_HELD, limit // 4), max(least, min(MOST_OPEN, limit // 4))


class Opens(Protocol):
    """A file that a pool opens when it is needed."""

    def open(self) -> int:
        """A new descriptor."""
        ...


class Pool:
    """The descriptors of many files: the first `keep_open` stay open, of the others at most `limit` at a time."""

    def __init__(self, keep_open: int | None = None, limit: int | None = None) -> None:
        if not hasattr(os, "preadv"):
            raise OSError(
                "model files are read by position, which Windows does not offer: use Linux, macOS or WSL, or pass "
                "arrays to hn.aggregate"
            )
        may_hold, may_open = affordable()
        self._limit = may_open if limit is None else limit
        self._descriptors: list[int] = []
        self._spool, self._spooled = -1, 0
        self._may_hold = may_hold if keep_open is None else keep_open
        self._lock = threading.Lock()
        self._idle: OrderedDict[Opens, int] = OrderedDict()  # the longest unused first
        self._used: dict[Opens, tuple[int, int]] = {}  # descriptor and number of threads reading from it

    def hold(self, file: File) -> int:
        """A descriptor that stays open until the pool is closed; -1 if there are too many of them."""
        with self._lock:
            if len(self._descriptors) >= self._may_hold:
                return -1
            fd = file.open()
            self._descriptors.append(fd)
            return fd

    def room(self, nbytes: int) -> tuple[int, int]:
        """Reserve space for unpacked values in one nameless temporary file; returns its descriptor and an offset.

        All values share this file: one file per tensor and client would exhaust the descriptors.
        """
        with self._lock:
            if self._spool < 0:
                with tempfile.TemporaryFile() as file:
                    self._spool = os.dup(file.fileno())
            at, self._spooled = self._spooled, self._spooled + nbytes
            return self._spool, at

    @contextmanager
    def descriptor(self, file: Opens) -> Generator[int]:
        """The file's descriptor, which stays open inside the `with`."""
        with self._lock:
            if file in self._used:
                fd, users = self._used[file]
            else:
                fd = self._idle.pop(file, -1)
                users = 0
                if fd < 0:
                    fd = file.open()
            self._used[file] = (fd, users + 1)
        try:
            yield fd
        finally:
            with self._lock:
                fd, users = self._used.pop(file)
                if users > 1:
                    self._used[file] = (fd, users - 1)
                else:
                    self._idle[file] = fd
                while self._idle and len(self._idle) + len(self._used) > self._limit:
                    os.close(self._idle.popitem(last=False)[1])

    def close(self) -> None:
        """Close every file that is not being read."""
        with self._lock:
            while self._descriptors:
                os.close(self._descriptors.pop())
            if self._spool >= 0:
                os.close(self._spool)
                self._spool = -1
            while self._idle:
                os.close(self._idle.popitem()[1])


class File:
    """One regular file, known by device, inode, size and time of change: if one of them differs later, it changed."""

    def __init__(self, pool: Pool, path: str, *, follow: bool = False) -> None:
        self.path = path
        self.name = Path(path).name
        self.pool = pool
        self._follow = follow
        self._stamp: tuple[int, ...] | None = None
        self._open_fd = pool.hold(self)
        with self._descriptor() as fd:
            info = os.fstat(fd)
        self.size = info.st_size
        self._stamp = _stamp(info)

    def open(self) -> int:
        """A new descriptor. Raises `UnusableError`, whose message is the reason, for all but the regular file."""
        # O_NONBLOCK: opening a FIFO would wait for a writer that never comes. The check after opening is the one that
        # counts; the one before keeps devices, which may act when they are opened, from being opened at all.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        if not self._follow:
            flags |= getattr(os, "O_NOFOLLOW", 0)
        try:
            self._check(Path(self.path).stat(follow_symlinks=self._follow))
            fd = os.open(self.path, flags)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise UnusableError(f"{self.name[:100]!r} cannot be opened: {_cause(error)}") from None
        try:
            info = os.fstat(fd)
            self._check(info)
            if self._stamp is not None and _stamp(info) != self._stamp:
                raise UnusableError(f"{self.name[:100]!r} changed during the run")
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check(self, info: os.stat_result) -> None:
        if stat.S_ISLNK(info.st_mode):
            raise UnusableError(
                f"{self.name[:100]!r} is a symbolic link; to allow it, pass follow_symlinks=True or --follow-symlinks"
            )
        if not stat.S_ISREG(info.st_mode):
            kind = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
            raise UnusableError(
                f"{self.name[:100]!r} is {kind.get(stat.S_IFMT(info.st_mode), 'a device')}, not a regular file"
            )

    @contextmanager
    def _descriptor(self) -> Generator[int]:
        if self._open_fd >= 0:
            yield self._open_fd
        else:
            with self.pool.descriptor(self) as fd:
                yield fd

    def fill(self, offset: int, out: Any) -> None:
        """Fill a contiguous array from `offset` on: one call to the system in nearly all cases."""
        if self._open_fd >= 0:
            try:
                if os.preadv(self._open_fd, (out,), offset) == out.nbytes:
                    return
            except OSError:
                pass  # tried again below, where the reason is found
        self.read(offset, memoryview(out).cast("B"))

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset` on. Raises `UnusableError` if the file ends before it is full."""
        wanted, count = len(buffer), 0
        try:
            with self._descriptor() as fd:
                while count < wanted:
                    n = os.preadv(fd, [buffer[count:] if count else buffer], offset + count)
                    if n == 0:
                        raise UnusableError(f"{self.name[:100]!r} ends at byte {offset + count}: it was cut short")
                    count += n
        except OSError as error:
            raise UnusableError(f"{self.name[:100]!r} cannot be read: {_cause(error)}") from None

    def bytes(self, offset: int, length: int) -> bytes:
        """A few bytes, such as a header; the caller has checked that the file is that long."""
        buffer = bytearray(length)
        self.read(offset, memoryview(buffer))
        return bytes(buffer)

    def change_reason(self) -> str | None:
        """The reason, if the file has changed since it was first opened; else None."""
        try:
            with self._descriptor() as fd:
                same = _stamp(os.fstat(fd)) == self._stamp
        except (OSError, UnusableError) as error:
            return str(error)
        return None if same else f"{self.name[:100]!r} changed during the run"


def _stamp(info: os.stat_result) -> tuple[int, ...]:
    # The time of the last change of the inode cannot be set back by the file's owner, that of its content can.
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
