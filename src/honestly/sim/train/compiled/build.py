"""Compile the C program once for this processor, keep it in the user's cache, and load it. Never a failure: without a
compiler (or a place to write, or with HONESTLY_COMPILE=0) there is a reason instead, and PyTorch does the work."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from honestly.sim.train.switches import turned_off

SOURCES = ("train.c", "vector.h", "layers.h", "convolution.h", "dense.h")
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fPIC", "-shared")
# some compilers know the processor by one of these words, some by none
TUNING = (("-march=native",), ("-mcpu=native",), ())
SECONDS = 120


class UnavailableError(Exception):
    """The reason why there is no compiled program."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled program, or None; `reason` then says why."""
    try:
        return _load()
    except UnavailableError as why:
        _REASON.append(str(why))
        return None


_REASON: list[str] = []


def reason() -> str | None:
    """Why there is no compiled program; None if there is one."""
    return None if library() is not None else _REASON[-1]


def _load() -> ctypes.CDLL:
    if turned_off("HONESTLY_COMPILE"):
        raise UnavailableError("turned off by HONESTLY_COMPILE")
    if platform.system() not in ("Linux", "Darwin"):
        raise UnavailableError(f"not tried on {platform.system()}")
    compiler = find_compiler()
    if compiler is None:
        raise UnavailableError("no C compiler (cc, gcc, clang or $CC)")
    try:
        place = folder()
        _private(place)
        path = place / f"train-{fingerprint(compiler)}.so"
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError:  # damaged: made again
                path.unlink()
        compile_to(path, compiler)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        raise UnavailableError(f"no place for the compiled program: {error}") from error


def find_compiler() -> str | None:
    """The user's C compiler, or None."""
    return next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)


def folder() -> Path:
    """Where compiled programs are kept."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "honestly" / "compiled"


def _private(place: Path) -> None:
    """Code is loaded from here, so that nobody else may write here."""
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = place.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnavailableError(f"others can write to {place}: chmod 700 it, or set XDG_CACHE_HOME")


def fingerprint(compiler: str) -> str:
    """Changes with the sources, the flags, the compiler and the processor (a home folder may be shared by several)."""
    digest = hashlib.sha256(repr((FLAGS, TUNING, compiler)).encode())
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{compiler} --version fails: {error}") from error
    digest.update(version)
    digest.update(_processor().encode())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """What `native` means here."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    wanted = ("model name", "flags", "Features", "CPU part")
    return "|".join([platform.machine(), platform.processor(), *sorted({x for x in lines if x.startswith(wanted)})])


def compile_to(path: Path, compiler: str) -> None:
    """Compile the program; the file appears whole or not at all."""
    source = Path(__file__).with_name(SOURCES[0])
    handle, name = tempfile.mkstemp(prefix=".train-", suffix=".so", dir=path.parent)
    os.close(handle)
    made = Path(name)
    failure = ""
    try:
        for tuning in TUNING:
            command = [compiler, *FLAGS, *tuning, str(source), "-o", str(made), "-lm"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
            except (OSError, subprocess.SubprocessError) as error:
                raise UnavailableError(f"{compiler} does not run: {error}") from error
            if done.returncode == 0:
                made.chmod(0o700)
                made.replace(path)
                return
            failure = done.stderr.strip().splitlines()[0][:200] if done.stderr.strip() else f"status {done.returncode}"
        raise UnavailableError(f"{compiler} cannot compile {source.name}: {failure}")
    finally:
        made.unlink(missing_ok=True)
