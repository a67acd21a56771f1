"""`honestly bench` as a user runs it: run, stop, kill, resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from honestly.cli import main
from honestly.runs.store import Run, Store, StoreError
from honestly.sim.experiment import Experiment
from honestly.sim.run import run as simulate

STUDY = """
name = "small"
[base]
clients = 5
rounds = {rounds}
epochs = 1
model = "mlp"
malicious = 1
attack = "sign_flip"
[axes]
rule = ["mean", {{ label = "Ours", rule = "bayesian" }}]
seed = [0, 1]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(STUDY.format(rounds=3))
    return path


def runs(folder: Path) -> list[Run]:
    with Store.read(folder) as store:
        return store.runs()


def test_a_study_is_run_skipped_and_shown(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["bench", str(study), "--out", out, "--only", "rule=Ours"]) == 0
    assert "small: 2 of 2 runs done" in capsys.readouterr().out
    assert [run.status for run in runs(Path(out))] == ["pending", "pending", "done", "done"]
    assert main(["bench", "--out", out, "--json"]) == 0, "the folder knows its study"
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["run", "run", "end"]
    assert [line["cell"] for line in lines[:2]] == [{"rule": "mean", "seed": 0}, {"rule": "mean", "seed": 1}]
    assert all(0 <= line["accuracy"] <= 1 for line in lines[:2])
    assert (lines[2]["done"], lines[2]["failed"], lines[2]["left"]) == (4, 0, 0)
    before = runs(Path(out))
    assert main(["bench", str(study), "--out", out, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert runs(Path(out)) == before


def test_a_dry_run_writes_nothing(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["bench", str(study), "--out", str(out), "--dry-run", "--workers", "2"]) == 0
    told = capsys.readouterr().out
    assert "small: 4 runs, 0 done, 4 to do with 12 rounds" in told
    assert "4 from a short calibration" in told
    assert "with 2 workers" in told
    assert not out.exists()
    assert main(["bench", str(study), "--out", str(out), "--quiet", "--shard", "1/4"]) == 0
    assert main(["bench", "--out", str(out), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["done"], found["rounds"], found["measured"]) == (4, 1, 9, 3)


@pytest.mark.parametrize("option", ["--import", "--reuse"])
def test_a_dry_run_counts_what_would_be_taken_in(
    option: str, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, archive, out = tmp_path / "there", tmp_path / "there.tar.gz", tmp_path / "out"
    assert main(["bench", str(study), "--out", str(there), "--quiet", "--only", "rule=Ours"]) == 0
    assert main(["export", "study", str(there), "-o", str(archive)]) == 0
    words = ["bench", str(study), "--out", str(out), "--dry-run", option, str(archive)]
    capsys.readouterr()
    assert main(words) == 0
    told = capsys.readouterr()
    assert "small: 4 runs, 2 done, 2 to do with 6 rounds" in told.out
    assert "2 from finished runs" in told.out, "their speed is known, too"
    assert "dry run, nothing is saved" in told.err
    assert not out.exists()
    # beside what is there already, which stays as it was
    assert main(["bench", str(study), "--out", str(out), "--quiet", "--only", "rule=mean", "--only", "seed=1"]) == 0
    before = (out / "study.sqlite").read_bytes()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["done"], found["rounds"]) == (4, 3, 3)
    assert (out / "study.sqlite").read_bytes() == before
    assert [run.status for run in runs(out)].count("done") == 1


def test_a_dry_run_of_an_import_alone_knows_its_study(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, out = tmp_path / "there", tmp_path / "out"
    assert main(["bench", str(study), "--out", str(there), "--quiet", "--shard", "1/4"]) == 0
    assert main(["bench", "--out", str(out), "--dry-run", "--import", str(there)]) == 0
    assert "small: 4 runs, 1 done" in capsys.readouterr().out
    assert not out.exists()


def test_shipped_studies_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    assert "paper-tables" in capsys.readouterr().out
    assert main(["bench", "paper-figure1", "--dry-run", "--only", "rule=Ours"]) == 0
    assert "paper-figure1: 1 runs, 0 done, 1 to do with 25 rounds" in capsys.readouterr().out


def test_failed_runs_are_told_and_tried_again(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    study.write_text(study.read_text().replace("seed = [0, 1]", 'dataset = ["digits", "mnist"]\nseed = [0]'))
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("honestly.sim.data.files.read", _no_data)
    assert main(["bench", str(study), "--out", out, "--quiet"]) == 1
    told = capsys.readouterr().err
    assert "failed: rule=mean dataset=mnist seed=0: ValueError: mnist is not here" in told
    assert "2 run(s) failed; run the same command to try them again" in told
    assert sorted(run.status for run in runs(Path(out))) == ["done", "done", "failed", "failed"]
    assert main(["bench", str(study), "--out", out, "--quiet", "--skip-failed"]) == 1
    assert main(["bench", str(study), "--out", out, "--quiet", "--only", "dataset=digits"]) == 0
    assert [run.attempts for run in runs(Path(out)) if run.status == "failed"] == [1, 1]


def _no_data(name: str, *_: Any) -> None:
    raise ValueError(f"{name} is not here")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a study, or the folder of one"),
        (["quik"], "did you mean quick?"),
        (["quick", "--only", "rule=Oars"], "did you mean Ours?"),
        (["quick", "--shard", "5/4"], "--shard 5/4"),
        (["quick", "--workers", "-1"], "--workers -1: must be at least 0"),
        (["quick", "--device", "tpu"], "--device tpu"),
        (["quick", "--ray", "--workers", "2"], "choose one of them"),
        (["quick", "--ray", "--device", "cuda"], "--gpus-per-run"),
        (["--out", "nothing"], "has no study yet"),
        (["--out", "nothing", "--import", "missing.tar.gz"], "no such file"),
    ],
)
def test_mistakes_are_named(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert all(line.startswith("honestly bench: ") for line in told.splitlines())


def test_a_mistyped_folder_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--out", str(tmp_path / "mistyped")]) == 2
    assert "mistyped has no study yet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_damaged_store_is_named(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.sqlite").write_bytes(b"\0" * 5000)
    assert main(["bench", str(study), "--out", str(tmp_path / "out")]) == 1
    assert "damaged or not an SQLite file" in capsys.readouterr().err
    assert main(["bench", str(study), "--out", "/proc/nobody/writes/here"]) == 1
    assert "cannot create /proc/nobody/writes/here" in capsys.readouterr().err


def test_a_changed_study_does_not_mix_with_the_old_one(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["bench", str(study), "--out", out, "--quiet", "--shard", "1/4"]) == 0
    study.write_text(study.read_text().replace("rounds = 3", "rounds = 2"))
    assert main(["bench", str(study), "--out", out, "--quiet"]) == 1
    assert "--replace" in capsys.readouterr().err
    assert main(["bench", str(study), "--out", out, "--quiet", "--replace"]) == 0
    assert [(run.status, run.of) for run in runs(Path(out))] == [("done", 2)] * 4


def test_results_are_exported_and_taken_in(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other = str(tmp_path / "out"), str(tmp_path / "other")
    assert main(["bench", str(study), "--out", out, "--quiet", "--only", "seed=0"]) == 0
    for what, file in (("runs", "runs.csv"), ("rounds", "rounds.jsonl"), ("study", "study.tar.gz")):
        assert main(["export", what, out, "-o", str(tmp_path / file)]) == 0
        assert (tmp_path / file).stat().st_size > 100
    capsys.readouterr()
    assert main(["bench", "--out", other, "--import", str(tmp_path / "study.tar.gz")]) == 0
    assert "2 finished run(s) imported" in capsys.readouterr().err
    assert main(["bench", "--out", other, "--quiet"]) == 0
    assert [run.status for run in runs(Path(other))] == ["done"] * 4
    assert main(["export", "runs", str(tmp_path), "-o", str(tmp_path / "x.csv")]) == 1
    assert "no study in" in capsys.readouterr().err


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "honestly", "bench", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for(folder: Path, ready: Callable[[list[Run]], bool], process: subprocess.Popen[str]) -> list[Run]:
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        try:
            found = runs(folder)
        except StoreError:  # not there yet
            found = []
        if found and ready(found):
            return found
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"never ready: {process.communicate()}")


def same_as_in_one_go(folder: Path) -> None:
    """Check that every run is complete and stored once; a resumed run has the numbers of an uninterrupted one."""
    with Store.read(folder) as store:
        assert [(run.status, run.rounds) for run in store.runs()] == [("done", run.of) for run in store.runs()]
        assert len(store.runs()) == 4
        run = next(run for run in store.runs() if (run.provenance or {})["resumed_at"] > 0)
        assert store.rounds(run.id) == simulate(Experiment.of(run.experiment)).records


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stopped_killed_and_finished(tmp_path: Path) -> None:
    study, out = tmp_path / "small.toml", tmp_path / "out"
    study.write_text(STUDY.format(rounds=20))
    words = (str(study), "--out", str(out), "--quiet")

    stopped = start(*words)
    wait_for(out, lambda found: found[0].rounds >= 3, stopped)
    stopped.send_signal(signal.SIGINT)
    _, told = stopped.communicate(timeout=30)
    assert stopped.returncode == 130
    assert f"To resume, run the same command, or: honestly bench --out {out}" in told
    assert {run.status for run in runs(out)} <= {"pending", "done"}, "what it held is given back"

    had = sum(run.rounds for run in runs(out))
    killed = start(*words)
    wait_for(out, lambda found: sum(run.rounds for run in found) >= had + 3, killed)
    killed.kill()
    killed.communicate()

    last = start(*words)
    _, told = last.communicate(timeout=100)
    assert (last.returncode, told) == (0, "")
    same_as_in_one_go(out)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_worker_is_replaced_and_its_run_goes_on(tmp_path: Path) -> None:
    study, out = tmp_path / "small.toml", tmp_path / "out"
    study.write_text(STUDY.format(rounds=20))
    driver = start(str(study), "--out", str(out), "--quiet", "--workers", "2")

    def at_work(run: Run) -> bool:
        return run.status == "running" and run.rounds >= 3

    victim = next(filter(at_work, wait_for(out, lambda found: any(map(at_work, found)), driver)))
    assert victim.worker is not None
    os.kill(int(victim.worker.split("/")[1]), signal.SIGKILL)
    _, told = driver.communicate(timeout=100)
    assert (driver.returncode, told) == (0, "")
    after = next(run for run in runs(out) if run.id == victim.id)
    assert after.worker != victim.worker
    assert (after.provenance or {})["resumed_at"] >= 2  # the state of the third round may not have been written yet
    same_as_in_one_go(out)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_only_the_driver_hears_ctrl_c(tmp_path: Path) -> None:
    """A terminal tells every process of the command; workers wait for the driver, which asks each of them once."""
    study, out = tmp_path / "small.toml", tmp_path / "out"
    study.write_text(STUDY.format(rounds=2000))

    def at_work(found: list[Run]) -> dict[str, int]:
        return {str(run.worker): run.rounds for run in found if run.status == "running" and run.rounds >= 1}

    driver = start(str(study), "--out", str(out), "--quiet", "--workers", "2")
    before = at_work(wait_for(out, lambda found: len(at_work(found)) == 2, driver))
    for worker in before:
        os.kill(int(worker.split("/")[1]), signal.SIGINT)
    further = {worker: rounds + 10 for worker, rounds in before.items()}
    wait_for(out, lambda found: all(at_work(found).get(worker, 0) >= n for worker, n in further.items()), driver)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=60)
    assert driver.returncode == 130


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_stop_with_their_driver(tmp_path: Path) -> None:
    study, out = tmp_path / "small.toml", tmp_path / "out"
    study.write_text(STUDY.format(rounds=2000))

    def working(found: list[Run]) -> bool:
        return sum(run.status == "running" and run.rounds >= 1 for run in found) == 2

    for how, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)):
        driver = start(str(study), "--out", str(out), "--quiet", "--workers", "2")
        found = wait_for(out, working, driver)
        pids = [int(run.worker.split("/")[1]) for run in found if run.status == "running" and run.worker]
        driver.send_signal(how)
        driver.communicate(timeout=60)
        assert driver.returncode == code
        end = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < end, f"workers live on after {how.name}"
            time.sleep(0.1)
        assert {run.status for run in runs(out)} == {"pending"}, "what they held is given back"
