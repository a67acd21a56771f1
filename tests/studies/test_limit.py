"""A study with a time limit ends between two rounds and can be resumed on another machine with the same numbers."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from honestly.cli import main
from honestly.runs.store import Store
from honestly.studies import limit as module
from honestly.studies.limit import MARGIN, OutOfTimeError, TimeLimit, seconds_of
from honestly.studies.study import StudyError

STUDY = """
name = "small"
[base]
clients = 5
rounds = 4
epochs = 1
model = "mlp"
malicious = 1
attack = "sign_flip"
[axes]
rule = ["median", { label = "Ours", rule = "bayesian" }]
start = [{ label = "at once", warm_up = 0 }, { label = "from a model", warm_up = 3 }]
"""


class Clock:
    """Ten seconds pass between two looks at it."""

    def __init__(self) -> None:
        self.now = itertools.count(time.time(), 10)

    def time(self) -> float:
        return next(self.now)


@pytest.fixture
def study(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(STUDY)
    return str(path)


def numbers(folder: Path) -> dict[str, object]:
    with Store.read(folder) as store:
        return {run.id: (run.status, run.rounds, run.summary, store.rounds(run.id)) for run in store.runs()}


@pytest.mark.parametrize(
    ("text", "seconds"), [("560", 560), ("9m", 540), ("9min", 540), ("1.5h", 5400), ("1h30m", 5400), ("2d", 172_800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0m", "soon", "-5", "9 m", "1h30", "9x", "1e3", "5m!"])
def test_what_is_no_duration_is_refused(text: str, study: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StudyError, match="write a duration such as 560, 9m"):
        seconds_of(text)
    assert main(["bench", study, f"--stop-after={text}"]) == 2
    assert f"--stop-after {text}" in capsys.readouterr().err


def test_no_round_is_started_that_would_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    limit = TimeLimit(ends=200.0, last=100.0)
    limit.check()  # nothing is known of rounds yet
    now[0] = 140.0
    limit.check()  # the first one took 40 s, another ends in time
    now[0] = 150.0
    with pytest.raises(OutOfTimeError):
        limit.check()  # the second one took 10 s, but the next may take 40 again
    assert limit.longest == 40.0
    assert now[0] + 40.0 < 200.0 <= now[0] + MARGIN * 40.0


def test_stop_by_the_limit_pack_unpack_elsewhere_and_finish(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    assert main(["bench", study, "--out", str(whole), "--quiet"]) == 0
    here, goes = tmp_path / "go-0", 0

    def go() -> int:
        monkeypatch.setattr(module, "time", Clock())
        return main(["bench", study, "--out", str(here), "--stop-after", "45", "--quiet"])

    # each go has time for two or three rounds, and its results travel to the next as one file
    while go() == 75:
        assert "the time of --stop-after 45 is up: stopped; finished rounds are saved" in capsys.readouterr().err
        goes += 1
        archive, there = tmp_path / f"go-{goes}.tar.gz", tmp_path / f"go-{goes}"
        assert main(["export", "study", str(here), "-o", str(archive)]) == 0
        assert main(["bench", "--out", str(there), "--import", str(archive), "--quiet"]) == 0
        here = there
        assert goes < 20
    assert goes >= 4
    assert numbers(here) == numbers(whole)
    with Store.read(here) as store:
        resumed = [(run.provenance or {}).get("resumed_at", 0) for run in store.runs()]
    assert any(resumed), "a run was interrupted in its middle"


def test_nothing_starts_without_time_and_nothing_is_lost_at_the_end(
    study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["bench", study, "--out", str(out), "--only", "start=at once", "--quiet"]
    for more in ([], ["--workers", "2"]):
        assert main([*words, "--stop-after", "0.000001", *more]) == 75
        assert "To resume, run the same command" in capsys.readouterr().err
    with Store.read(out) as store:
        assert {(run.status, run.rounds, run.attempts) for run in store.runs()} == {("pending", 0, 0)}
    assert main([*words, "--stop-after", "1h"]) == 0
    assert main([*words, "--stop-after", "0.000001"]) == 0, "there is nothing left to do"
