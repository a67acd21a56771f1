"""Compile a C program once for this processor, keep it in the user's cache, and load it. Never a failure: without a
compiler (or a place to write, or with HONESTLY_COMPILE=0) there is a reason instead, and the caller's other way."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

from honestly.kernels.switches import is_off

FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-strict-aliasing", "-fPIC", "-shared")
# some compilers know the processor by one of these words, some by none
TUNING = (("-march=native",), ("-mcpu=native",), ())
SECONDS = 120


class UnavailableError(Exception):
    """The reason why there is no compiled program."""


class Program:
    """C sources of one folder and the library that they become; the first of them includes the others."""

    def __init__(self, name: str, place: Path, sources: tuple[str, ...]) -> None:
        self.name = name
        self._sources = tuple(place / source for source in sources)
        self._tried = False
        self._library: ctypes.CDLL | None = None
        self._reason: str | None = None
        self._renew()
        if hasattr(os, "register_at_fork"):  # another thread may hold the lock when this process is forked
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def library(self) -> ctypes.CDLL | None:
        """The compiled program, or None; `reason` then says why."""
        if not self._tried:
            with self._lock:
                if not self._tried:
                    try:
                        self._library = self.load()
                    except UnavailableError as why:
                        self._reason = str(why)
                    self._tried = True
        return self._library

    def reason(self) -> str | None:
        """Why there is no compiled program; None if there is one."""
        return None if self.library() is not None else self._reason

    def load(self) -> ctypes.CDLL:
        """Find the program in the cache, or make it. Raises `UnavailableError`."""
        if is_off("HONESTLY_COMPILE"):
            raise UnavailableError("turned off by HONESTLY_COMPILE")
        if platform.system() not in ("Linux", "Darwin"):
            raise UnavailableError(f"not tried on {platform.system()}")
        compiler = find_compiler()
        if compiler is None:
            raise UnavailableError("no C compiler (cc, gcc, clang or $CC)")
        try:
            place = folder()
            _private(place)
            stem = f"{self.name}-{self.fingerprint(compiler)}"
            for path in sorted(place.glob(f"{stem}-*.so")):
                if _digest(path) == path.stem.rpartition("-")[2]:
                    return ctypes.CDLL(str(path))
                path.unlink(missing_ok=True)  # damaged: made again, for loading half a library ends the process
            return ctypes.CDLL(str(self.compile_to(place / stem, compiler)))
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
            raise UnavailableError(f"no place for the compiled program: {error}") from error

    def fingerprint(self, compiler: str) -> str:
        """Changes with the sources, the flags, the compiler and the processor (several may share a home folder)."""
        digest = hashlib.sha256(repr((FLAGS, TUNING, _identity(compiler), _processor())).encode())
        for source in self._sources:
            digest.update(source.read_bytes())
        return digest.hexdigest()[:20]

    def compile_to(self, stem: Path, compiler: str) -> Path:
        """Compile the program to `STEM-DIGEST.so`; the file appears whole or not at all."""
        source = self._sources[0]
        handle, name = tempfile.mkstemp(prefix=f".{self.name}-", suffix=".so", dir=stem.parent)
        os.close(handle)
        draft = Path(name)
        failure = ""
        try:
            for tuning in TUNING:
                command = [compiler, *FLAGS, *tuning, str(source), "-o", str(draft), "-lm"]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
                except (OSError, subprocess.SubprocessError) as error:
                    raise UnavailableError(f"{compiler} does not run: {error}") from error
                if done.returncode == 0:
                    draft.chmod(0o700)
                    return draft.replace(stem.with_name(f"{stem.name}-{_digest(draft)}.so"))
                output = done.stderr.strip()
                failure = output.splitlines()[0][:200] if output else f"status {done.returncode}"
            raise UnavailableError(f"{compiler} cannot compile {source.name}: {failure}")
        finally:
            draft.unlink(missing_ok=True)


def find_compiler() -> str | None:
    """The user's C compiler, or None."""
    return next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)


def folder() -> Path:
    """Where compiled programs are kept."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "honestly" / "compiled"


def _private(place: Path) -> None:
    """Code is loaded from here, so nobody else may write here."""
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = place.stat()
    if status.st_uid != os.getuid():  # as after `sudo honestly`, which keeps the user's home
        raise UnavailableError(f"{place} belongs to another user: remove it, or set XDG_CACHE_HOME")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnavailableError(f"others can write to {place}: chmod 700 it, or set XDG_CACHE_HOME")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def _identity(compiler: str) -> tuple[str, int, int]:
    """Which compiler it is, without starting it: every process asks."""
    path = Path(shutil.which(compiler) or compiler).resolve()
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


def _processor() -> str:
    """What `native` means here."""
    lines: list[str] = []
    info = Path("/proc/cpuinfo")
    if info.exists():
        with info.open(errors="replace") as file:
            # The first processors, without the line that is cut: all of them take long on large machines.
            lines = file.read(1 << 16).split("\n")[:-1]
    wanted = ("model name", "flags", "Features", "CPU part")
    return "|".join([platform.machine(), platform.processor(), *sorted({x for x in lines if x.startswith(wanted)})])
