"""One file over HTTP: what has come already is kept and continued, the sum is checked, the file appears whole.

What has come is `NAME.part`; `NAME.part.json` says from which address and which version of the file (ETag or date), so
that a part is only continued by the rest of the same file (`Range` and `If-Range`).
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[int], None]  # is told how many bytes are there
PIECE = 1 << 18
TRIES = 3  # in a row that bring nothing; twice as many if something has come already
TIMEOUT = 30.0  # seconds without a byte
PAUSE = 0.25  # seconds, doubled after each try that brings nothing


class TransferError(OSError):
    """A file could not be fetched; the message says why."""


class BrokenOffError(TransferError):
    """The connection failed or ended early: worth another try."""


@dataclass(frozen=True)
class File:
    """A file as it must be."""

    size: int
    md5: str  # guards against damage, not against forgery

    def matches(self, path: Path) -> bool:
        """Whether this is the file."""
        return path.is_file() and path.stat().st_size == self.size and md5_of(path) == self.md5


def md5_of(path: Path) -> str:
    """The MD5 sum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def part_of(path: Path) -> Path:
    """Where the beginning of a file is kept until the rest has come."""
    return path.with_name(f"{path.name}.part")


def transfer(url: str, path: Path, file: File, progress: Progress = lambda done: None) -> None:
    """Fetch ``url`` to ``path``, continuing what an earlier call has left, however it ended.

    Args:
        url: an http or https address.
        path: where the file appears, complete and checked, or not at all.
        file: its size and sum.
        progress: called with the number of bytes that are there.
    """
    part, note = part_of(path), path.with_name(f"{path.name}.part.json")
    with alone(path.with_name(f"{path.name}.lock")):
        if file.matches(path):  # another process was faster
            return
        again = _size(part) > 0  # a part of unknown history may be bad: then once more from the start
        failures = 0
        while not file.matches(part):
            have = _size(part)
            if have >= file.size:
                _forget(part, note)
                if not again:
                    raise TransferError(f"what came has not the MD5 sum {file.md5}: it is damaged or another file")
                again, have = False, 0
            try:
                _continue(url, part, note, file, progress)
            except BrokenOffError as error:
                failures = 0 if _size(part) > have else failures + 1
                if failures >= (2 * TRIES if have else TRIES):
                    raise TransferError(f"{error} ({failures} tries without a byte)") from error
                time.sleep(PAUSE * 2**failures)
        part.replace(path)
        note.unlink(missing_ok=True)


def _continue(url: str, part: Path, note: Path, file: File, progress: Progress) -> None:
    """One request: the rest of the file, or all of it if the server cannot or the file has changed."""
    headers = {"User-Agent": "honestly", "Accept-Encoding": "identity"}
    have, version = _size(part), _version(note, url)
    if have and version:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            start = _start(answer, have, file)
            note.write_text(json.dumps({"url": url, "version": _strong(answer)}))
            _receive(answer, part, start, file, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the server's file is no longer than the part
            _forget(part, note)
            raise BrokenOffError("the server has less than what has come") from error
        kind = BrokenOffError if error.code in (408, 429) or error.code >= 500 else TransferError
        raise kind(f"HTTP status {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
        raise BrokenOffError(str(getattr(error, "reason", "") or error) or type(error).__name__) from error


def _start(answer: Any, have: int, file: File) -> int:
    """At which byte the answer begins, if it belongs to the file that is wanted."""
    start, announced = 0, answer.headers.get("Content-Length")
    total = int(announced) if announced and announced.isdigit() else None
    if answer.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
        if found is None or int(found[1]) != have:
            raise TransferError(f"the server answered with bytes that were not asked for (from {have} on)")
        start, total = have, None if found[2] == "*" else int(found[2])
    if total is not None and total != file.size:
        raise TransferError(f"the server has a file of {total:,} bytes: expected {file.size:,}")
    return start


def _receive(answer: Any, part: Path, start: int, file: File, progress: Progress) -> None:
    with part.open("r+b" if start else "wb") as out:
        out.seek(start)
        out.truncate()
        done = start
        progress(done)
        while piece := answer.read1(PIECE):
            done += len(piece)
            if done > file.size:
                raise TransferError(f"the server sends more than {file.size:,} bytes: it is another file")
            out.write(piece)
            progress(done)
        out.flush()
        os.fsync(out.fileno())
    if done < file.size:
        raise BrokenOffError(f"the connection ended after {done:,} of {file.size:,} bytes")


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _forget(part: Path, note: Path) -> None:
    part.unlink(missing_ok=True)
    note.unlink(missing_ok=True)


def _strong(answer: Any) -> str | None:
    """What names this version of the file: a strong ETag, else the date (weak ETags are not allowed in If-Range)."""
    etag = answer.headers.get("ETag", "")
    return etag if etag.startswith('"') else answer.headers.get("Last-Modified")


def _version(note: Path, url: str) -> str | None:
    """The version of which we have a part from this address."""
    try:
        content = json.loads(note.read_text())
        version = content["version"] if content["url"] == url else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) and version.isprintable() else None


@contextlib.contextmanager
def alone(lock: Path) -> Generator[None]:
    """One process at a time fetches a file; the others wait and then find it (where the system has such locks)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        with lock.open("w") as held:
            with contextlib.suppress(OSError):  # some network folders have no locks: the sum still guards the file
                fcntl.flock(held, fcntl.LOCK_EX)
            if not _is(lock, held.fileno()):
                continue  # the one before us has removed it
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
