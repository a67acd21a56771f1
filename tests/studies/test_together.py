"""Runs in parallel threads: every cell runs once, stops on request, and devices that are not GPUs are handled."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from honestly.runs.store import PlannedRun, Store
from honestly.studies import together
from honestly.studies.study import Study
from honestly.studies.work import WorkOptions

STUDY = """
name = "tiny"
[base]
dataset = "digits"
clients = 4
rounds = {rounds}
epochs = 1
[axes]
rule = ["mean", "median", "bayesian"]
seed = [0, 1]
"""


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads' logic on a machine without a GPU: streams that do nothing."""
    cuda = SimpleNamespace(stream=lambda stream: contextlib.nullcontext(), Stream=lambda device: None)
    monkeypatch.setattr(together, "torch", SimpleNamespace(device=lambda name: SimpleNamespace(type="cuda"), cuda=cuda))


def planned(folder: Path, rounds: int) -> list[PlannedRun]:
    entries = Study.parse(STUDY.format(rounds=rounds)).entries()
    with Store.open(folder) as store:
        store.add(entries)
    return entries


def test_every_run_is_done_once_with_the_numbers_of_a_run_alone(tmp_path: Path, no_gpu: None) -> None:
    ids = {e.id for e in planned(tmp_path / "a", 2)}
    planned(tmp_path / "b", 2)
    assert together.side_by_side(tmp_path / "a", ids, 3, WorkOptions())
    assert together.side_by_side(tmp_path / "b", ids, 1, WorkOptions())
    with Store.read(tmp_path / "a") as a, Store.read(tmp_path / "b") as b:
        assert {run.status for run in a.runs()} == {"done"}
        assert {run.attempts for run in a.runs()} == {1}
        for id in ids:
            assert a.rounds(id) == b.rounds(id)
            assert [r["round"] for r in a.rounds(id)] == [1, 2]


def test_ctrl_c_ends_after_the_round_and_nothing_is_lost(tmp_path: Path, no_gpu: None) -> None:
    ids = {e.id for e in planned(tmp_path, 10_000)}
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert not together.side_by_side(tmp_path, ids, 2, WorkOptions())
    timer.join()
    with Store.read(tmp_path) as store:
        assert {run.status for run in store.runs()} == {"pending"}  # free for the next process
        assert sum(run.rounds for run in store.runs()) > 0


def test_it_is_for_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--together is for a GPU, but the device is cpu: use --workers"):
        together.side_by_side(tmp_path, (), 2, WorkOptions())
