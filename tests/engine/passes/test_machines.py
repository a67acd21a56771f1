"""Faults of machines: one core, limits set by the user, several threads and forked workers at once, no compiler, no
writable folder. Each runs in its own process with a time limit: none may hang, and none may give a wrong result."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from compiler import needs_compiler

from honestly.engine.passes import plan

#: Large enough for the compiled program and for threads.
PRELUDE = """
import os, sys, threading, time
import numpy as np
import honestly as hn
from honestly.engine.passes import compiled, plain, plan
compiled.WORTH_COMPILING = plain.WORTH_THREADS = compiled.WORTH_THREADS = 0
X = np.random.default_rng(0).normal(size=(12, 60_000)).astype(np.float32)
X[9:] *= -4
def result():
    return hn.aggregate(X).value.copy(), hn.aggregate(X, "median").value.copy()
def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
"""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def run(script: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    # A fork of a process with threads is what these tests are about.
    warnings = {"PYTHONWARNINGS": "error,ignore::DeprecationWarning"}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)], env=environment | warnings | variables,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ways = pytest.mark.parametrize("compiles", ["0", pytest.param("1", marks=needs_compiler)])


@ways
def test_several_threads_at_once(compiles: str) -> None:
    script = """
    expected, found = result(), []
    callers = [threading.Thread(target=lambda: found.append(result())) for _ in range(8)]
    [thread.start() for thread in callers]
    [thread.join() for thread in callers]
    assert len(found) == 8
    [check(each, expected) for each in found]
    """
    run(script, HONESTLY_COMPILE=compiles, HONESTLY_THREADS="3")


@needs_fork
@ways
def test_forked_workers_while_threads_are_at_work(compiles: str) -> None:
    script = """
    import multiprocessing
    expected = result()
    stop = threading.Event()
    def go_on():
        while not stop.is_set():
            result()
    busy = [threading.Thread(target=go_on) for _ in range(2)]
    [thread.start() for thread in busy]
    time.sleep(0.05)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=lambda: check(result(), expected)) for _ in range(4)]
    [worker.start() for worker in workers]
    [worker.join(60) for worker in workers]
    stop.set()
    [thread.join() for thread in busy]
    codes = [worker.exitcode for worker in workers]
    [worker.kill() for worker in workers]
    assert codes == [0] * 4, codes
    """
    run(script, HONESTLY_COMPILE=compiles, HONESTLY_THREADS="3")


@ways
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not say which cores to use")
def test_one_core(compiles: str) -> None:
    script = """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    assert plan.threads() == 1
    one = result()
    os.environ["HONESTLY_THREADS"] = "4"
    check(result(), one)
    """
    run(script, HONESTLY_COMPILE=compiles)


@pytest.mark.parametrize("name", plan.LIMITS)
def test_the_users_limits_are_ours_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in (*plan.LIMITS, "HONESTLY_THREADS"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(plan, "_quota", lambda: 1 << 30)
    assert plan.threads() == 16
    monkeypatch.setenv(name, "3")
    assert plan.threads() == 3
    monkeypatch.setenv(name, "2,1")
    assert plan.threads() == 2
    for nonsense in ("", "0", "-1", "many"):
        monkeypatch.setenv(name, nonsense)
        assert plan.threads() == 16
    monkeypatch.setenv(name, "3")
    monkeypatch.setenv("HONESTLY_THREADS", "5")
    assert plan.threads() == 5


@ways
@pytest.mark.parametrize("name", plan.LIMITS)
def test_no_thread_is_started_where_the_user_allows_only_one(compiles: str, name: str) -> None:
    script = """
    allowed = {name: os.environ.get(name) for name in plan.LIMITS}
    start = threading.Thread.start
    def refuse(thread):
        raise AssertionError(f"{thread.name} was started")
    threading.Thread.start = refuse
    found = result()
    threading.Thread.start = start
    assert {name: os.environ.get(name) for name in plan.LIMITS} == allowed
    os.environ["HONESTLY_THREADS"] = "3"
    check(result(), found)
    """
    run(script, HONESTLY_COMPILE=compiles, **{name: "1"})


@pytest.mark.parametrize("name", ["accelerate", "mkl-sdl", "blis", "none", ""])
def test_any_blas_or_none(name: str) -> None:
    """NumPy says which BLAS it was built with, or nothing; the result does not depend on what its kernels do."""
    script = """
    blas = {"name": os.environ["NAME_OF_BLAS"]} if os.environ["NAME_OF_BLAS"] else {}
    np.show_config = lambda mode: {"Build Dependencies": {"blas": blas}} if blas else {}
    from honestly.engine.passes.blas import wide_kernels
    wide_kernels.cache_clear()
    value, median = result()
    assert not wide_kernels()
    np.testing.assert_allclose(value, X[:9].mean(axis=0), atol=0.3)
    np.testing.assert_allclose(median, np.median(X, axis=0), atol=1e-6)
    os.environ["HONESTLY_THREADS"] = "1"
    check(result(), (value, median))
    """
    run(script, HONESTLY_COMPILE="0", HONESTLY_THREADS="3", NAME_OF_BLAS=name)


@pytest.mark.parametrize(("text", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 1 << 30)])
def test_a_containers_share_of_the_cores(
    text: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    monkeypatch.setattr(plan, "QUOTA", tmp_path / "cpu.max")
    plan._quota.cache_clear()
    assert plan._quota() == cores
    monkeypatch.setattr(plan, "QUOTA", tmp_path / "nothing")
    plan._quota.cache_clear()
    assert plan._quota() == 1 << 30
    plan._quota.cache_clear()


@pytest.mark.parametrize(
    "variables",
    [
        {"HONESTLY_COMPILE": "0"},
        {"PATH": "/nonexistent", "CC": ""},
        {"XDG_CACHE_HOME": "/proc/nowhere"},  # a place where no folder can be created
        {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": ""},
        {"CC": "false"},
    ],
    ids=lambda variables: ",".join(variables),
)
def test_without_the_compiled_program_numpy_does_the_work(variables: dict[str, str]) -> None:
    script = """
    from honestly.kernels.rows import PROGRAM
    assert PROGRAM.reason(), "it was compiled"
    value, median = result()
    np.testing.assert_allclose(value, X[:9].mean(axis=0), atol=0.3)  # the plain mean is off by 2.5
    np.testing.assert_allclose(median, np.median(X, axis=0), atol=1e-6)
    """
    run(script, **variables)


@needs_compiler
def test_both_ways_agree() -> None:
    script = """
    sys.stdout.buffer.write(np.stack(result()).tobytes())
    """
    found = []
    for compiles in ("0", "1"):
        environment = {**os.environ, "HONESTLY_COMPILE": compiles}
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=100)
        assert done.returncode == 0, done.stderr.decode()
        found.append(np.frombuffer(done.stdout, np.float32))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=2e-6)
