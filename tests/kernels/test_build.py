"""Programs are compiled once, safely, and cached; any obstacle is reported as a reason and never raises."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from compiler import needs_compiler

from honestly.kernels import UnavailableError, build
from honestly.kernels.rows import PROGRAM


def fake_compiler(folder: Path, body: str) -> str:
    path = folder / "fakecc"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fake 1 && exit 0\n{body}\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HONESTLY_COMPILE", raising=False)
    return tmp_path / "cache" / "honestly" / "compiled"


# what stands behind -o
OUTPUT = 'while [ "$1" != -o ]; do shift; done'


@needs_compiler
def test_it_is_compiled_once_and_a_damaged_file_is_made_again(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    compiler = fake_compiler(tmp_path, f'echo once >> {log}; {OUTPUT}; cc -shared -x c /dev/null -o "$2"')
    monkeypatch.setenv("CC", compiler)
    own_cache.mkdir(parents=True, mode=0o700)
    (own_cache / f"rows-{PROGRAM.fingerprint(compiler)}-0123.so").write_bytes(b"cut short")
    PROGRAM.load()
    PROGRAM.load()
    assert log.read_text() == "once\n"
    (whole,) = own_cache.iterdir()
    half = whole.read_bytes()[:5000]  # half a library would end the process that loads it
    whole.unlink()  # this process has it open: the file must not become shorter under it
    whole.write_bytes(half)
    PROGRAM.load()
    assert log.read_text() == "once\nonce\n"
    assert len(list(own_cache.iterdir())) == 1
    assert own_cache.stat().st_mode & 0o777 == 0o700


def test_every_obstacle_is_a_reason_and_leaves_nothing_behind(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", fake_compiler(tmp_path, f"{OUTPUT}; echo half > $2; echo no such thing >&2; exit 1"))
    with pytest.raises(UnavailableError, match=r"fakecc cannot compile rows\.c: no such thing"):
        PROGRAM.load()
    assert list(own_cache.iterdir()) == []
    monkeypatch.setenv("CC", fake_compiler(tmp_path, "sleep 5"))
    monkeypatch.setattr(build, "SECONDS", 0.2)
    with pytest.raises(UnavailableError, match=r"fakecc does not run: .*timed out"):
        PROGRAM.load()
    assert list(own_cache.iterdir()) == []
    monkeypatch.setattr(build, "SECONDS", 20)
    monkeypatch.setenv("CC", fake_compiler(tmp_path, f"{OUTPUT}; echo no library > $2"))
    with pytest.raises(UnavailableError, match="no place for the compiled program"):
        PROGRAM.load()
    own_cache.chmod(0o777)
    with pytest.raises(UnavailableError, match=r"others can write to .*chmod 700"):
        PROGRAM.load()
    with monkeypatch.context() as later:  # chmod would not help
        later.setattr(build.os, "getuid", lambda: own_cache.stat().st_uid + 1)
        with pytest.raises(UnavailableError, match="belongs to another user: remove it, or set XDG_CACHE_HOME"):
            PROGRAM.load()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fakecc"))  # a file
    with pytest.raises(UnavailableError, match="no place for the compiled program"):
        PROGRAM.load()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC")
    with pytest.raises(UnavailableError, match="no C compiler"):
        PROGRAM.load()
    monkeypatch.setenv("HONESTLY_COMPILE", "0")
    with pytest.raises(UnavailableError, match="turned off by HONESTLY_COMPILE"):
        PROGRAM.load()


def test_another_processor_or_compiler_has_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = fake_compiler(tmp_path, "")
    before = PROGRAM.fingerprint(one)
    assert PROGRAM.fingerprint(one) == before
    monkeypatch.setattr(build, "_processor", lambda: "another")
    assert PROGRAM.fingerprint(one) != before
    later = tmp_path / "later"
    later.mkdir()
    assert PROGRAM.fingerprint(fake_compiler(later, "# another")) != before


def test_threads_that_ask_at_once_wait_for_one_compilation(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("CC", fake_compiler(tmp_path, f"echo once >> {log}; sleep 0.3; exit 1"))
    program = build.Program("some", Path(build.__file__).parent / "passes", ("rows.c", "passes.h"))
    asking = [threading.Thread(target=program.library) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert program.reason() is not None
    assert len(log.read_text().splitlines()) == len(build.TUNING)


FORK = """
import os, sys, threading, time
from pathlib import Path
from honestly.kernels import build
program = build.Program("some", Path(build.__file__).parent / "passes", ("rows.c", "passes.h"))
other = threading.Thread(target=program.library)
other.start()
time.sleep(0.3)  # the other thread compiles now, and holds the lock
child = os.fork()
if child == 0:
    os._exit(0 if program.reason() else 1)
status = os.waitpid(child, 0)[1]
other.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_is_forked_during_a_compilation_does_not_wait_for_it(own_cache: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "CC": fake_compiler(tmp_path, "sleep 1; exit 1"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", FORK], env=environment, timeout=60, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
