"""A worker resumes where another stopped, records failures, and stops when it must."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from honestly.runs import states
from honestly.runs.store import Store, StoreError
from honestly.sim.experiment import Experiment
from honestly.sim.run import run as simulate
from honestly.sim.summary import summary
from honestly.studies import work as module
from honestly.studies.study import Study
from honestly.studies.work import Datasets, Heartbeat, WorkOptions, free_the_dead, new_worker, one_by_one, work

STUDY = """
name = "small"
[base]
clients = 5
rounds = 3
epochs = 1
model = "mlp"
malicious = 1
attack = "sign_flip"
[axes]
rule = ["mean", "median"]
seed = [0, 1]
"""
OPTIONS = WorkOptions()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as store:
        store.add(Study.parse(STUDY).entries())
        yield store


def ids(store: Store) -> set[str]:
    return {run.id for run in store.runs()}


def test_a_study_in_one_process(store: Store) -> None:
    assert one_by_one(store, ids(store), "w", OPTIONS)
    for run in store.runs():
        assert (run.status, run.rounds, run.attempts) == ("done", 3, 1)
        alone = simulate(Experiment.of(run.experiment)).records
        assert store.rounds(run.id) == alone
        assert run.summary == summary(alone)
        assert run.provenance is not None
        assert {"version", "commit", "device", "torch", "python", "seed"} <= run.provenance.keys()
        assert run.provenance["seed"] == run.cell["seed"]
        assert all(laps["train"] > 0 and laps["images"] > 0 for laps in store.seconds(run.id))
        assert not store.run_folder(run.id).exists(), "the store has it all"
    before = store.runs()
    assert one_by_one(store, ids(store), "w", OPTIONS)
    assert store.runs() == before, "finished runs are left alone"


def test_only_the_requested_runs_are_done(store: Store) -> None:
    first = store.runs()[1].id
    assert one_by_one(store, {first}, "w", WorkOptions(keep_models=True))
    assert [run.status for run in store.runs()] == ["pending", "done", "pending", "pending"]
    assert (store.run_folder(first) / "state-3.bin").is_file()


def test_an_interrupted_run_resumes_and_ends_with_the_same_numbers(store: Store) -> None:
    asked = iter([False, False, True])
    assert not one_by_one(store, ids(store), "w", WorkOptions(halt=lambda: next(asked)))
    half = store.runs()[0]
    assert (half.status, half.rounds, half.attempts) == ("pending", 2, 0)
    assert one_by_one(store, {half.id}, "v", OPTIONS)
    done = store.run(half.id)
    assert done.provenance is not None
    assert (done.status, done.provenance["resumed_at"]) == ("done", 2)
    assert store.rounds(half.id) == simulate(Experiment.of(half.experiment)).records


def test_a_store_behind_its_states_catches_up(store: Store) -> None:
    # a copy of the database, or an earlier version: the state after round 2 is there, the round itself is not
    run = store.claim("w")
    assert run is not None
    asked = iter([False, True])
    assert not work(store, run, worker="w", options=WorkOptions(halt=lambda: next(asked)))
    store.keep_rounds(run.id, 1, worker="w")
    assert work(store, run, worker="w", options=OPTIONS)
    assert (store.run(run.id).provenance or {})["resumed_at"] == 1
    assert store.rounds(run.id) == simulate(Experiment.of(run.experiment)).records


def test_a_failed_run_is_recorded_and_the_others_are_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.simulate

    def sometimes(experiment: Experiment, *rest: Any, **options: Any) -> Any:
        if experiment.rule.name == "median":
            raise RuntimeError("the GPU is on fire")
        return real(experiment, *rest, **options)

    monkeypatch.setattr(module, "simulate", sometimes)
    assert one_by_one(store, ids(store), "w", OPTIONS)
    found = {(run.cell["rule"], run.status, run.error) for run in store.runs()}
    errors = {error for _, status, error in found if status == "failed"}
    assert {(rule, status) for rule, status, _ in found} == {("mean", "done"), ("median", "failed")}
    (error,) = errors
    assert error is not None
    assert error.startswith("RuntimeError: the GPU is on fire (test_work.py:")
    failed = next(run for run in store.runs() if run.status == "failed")
    assert failed.provenance is not None
    assert failed.provenance["torch"]


def test_a_full_disk_stops_the_study_and_frees_the_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise StoreError("cannot write it: No space left on device")

    monkeypatch.setattr(states, "write_file", full)
    with pytest.raises(OSError, match="No space left"):
        one_by_one(store, ids(store), "w", OPTIONS)
    assert {run.status for run in store.runs()} == {"pending"}


def test_a_worker_that_lost_its_run_stops_working_on_it(store: Store) -> None:
    run = store.claim("slow")
    assert run is not None
    store.release("slow")
    assert store.claim("other") is not None
    assert work(store, run, worker="slow", options=OPTIONS)
    held = store.run(run.id)
    assert (held.status, held.worker, held.rounds) == ("running", "other", 0)


def test_runs_start_from_a_warm_up_that_is_done_once(tmp_path: Path) -> None:
    text = STUDY.replace("rounds = 3", "rounds = 2\nwarm_up = 3").replace("seed = [0, 1]", "seed = [0]")
    with Store.open(tmp_path) as store:
        store.add(Study.parse(text).entries())
        assert one_by_one(store, ids(store), "w", OPTIONS)
        start, *rest = store.runs()
        assert (start.cell, start.of, len(rest)) == ({"seed": 0, "warm_up": 3}, 3, 2)
        assert (store.run_folder(start.id) / "state-3.bin").is_file(), "others may still start from it"
        for run in rest:
            assert store.rounds(run.id) == simulate(Experiment.of(run.experiment)).records


def test_waiting_for_another_worker_ends_when_it_is_done(store: Store) -> None:
    other = store.claim("somewhere/1/x")
    assert other is not None

    def finish() -> None:
        time.sleep(1)
        with Store.open(store.folder) as mine:
            mine.finish(other.id, {}, {}, worker="somewhere/1/x")

    thread = threading.Thread(target=finish)
    thread.start()
    assert one_by_one(store, {other.id}, "w", OPTIONS)
    assert store.run(other.id).status == "done"
    thread.join()


def test_runs_of_dead_workers_are_free_at_once(store: Store) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = new_worker().replace(f"/{os.getpid()}/", f"/{gone.pid}/")
    mine, far = new_worker(), f"elsewhere/{os.getpid()}/x"
    for name in (dead, mine, far):
        assert store.claim(name) is not None
    assert free_the_dead(store) == 1
    assert [run.status for run in store.runs()] == ["pending", "running", "running", "pending"]
    assert store.runs()[0].attempts == 1


def test_windows_is_not_asked_for_dead_workers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.claim(new_worker()) is not None
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "kill", lambda pid, number: pytest.fail("signal 0 is Ctrl-C on Windows"))
    assert free_the_dead(store) == 0


def test_a_heartbeat_renews_the_claim(store: Store) -> None:
    run = store.claim("w")
    assert run is not None
    end = time.monotonic() + 30
    with Heartbeat(store.folder, "w", every=0.05):
        while store.run(run.id).updated == run.updated:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_data_set_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Datasets(None)
    first = data.get("digits")
    monkeypatch.setattr(module, "load", None)
    assert data.get("digits") is first


def test_an_error_of_the_store_does_not_fail_the_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.claim("w")
    assert run is not None

    def full(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(store, "write_round", full)
    with pytest.raises(StoreError):
        work(store, run, worker="w", options=OPTIONS)
    assert store.run(run.id).status == "running"
