"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that after a crash it is either the old one or the new one, whole.

    Text is UTF-8; half of a surrogate pair, which UTF-8 cannot say, becomes a backslash and its number.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    draft = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    with contextlib.suppress(OSError):  # the content is safe; only the name might be lost with the power
        sync_folder(path.parent)


def check_regular(path: Path) -> None:
    """Raise OSError for a pipe or a device: reading it might never end."""
    if path.is_fifo() or path.is_char_device():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def sweep(folder: Path, *names: str) -> None:
    """Remove what a process that was killed left of files with these names; `*` stands for any text."""
    for name in names:
        for path in folder.glob(f".{name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file; when this returns, it is on the disk."""
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some network file systems cannot
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(handle)
