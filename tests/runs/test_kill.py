"""Kill runs at critical points: a resumed run ends with the same bytes as an uninterrupted one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kill_at
import pytest
from kill_at import POINTS, ROUND

from honestly.runs.folder import ROUNDS, SECONDS
from honestly.runs.store import Store
from honestly.sim.experiment import Experiment
from honestly.sim.run import run
from honestly.studies.work import WorkOptions, one_by_one

SETTINGS: dict[str, Any] = {
    "clients": 6, "rounds": 5, "epochs": 1, "model": "mlp", "rule": {"name": "bayesian", "memory": 0.8},
    "attack": "random", "malicious": 2, "dynamic": True, "participation": 0.9, "seed": 7,
}  # fmt: skip
E = Experiment.of(SETTINGS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert run(E, folder).finished
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, kill_at.__file__, str(folder), json.dumps(SETTINGS), *POINTS], check=True)
    return folder


@pytest.mark.parametrize("point", [point for point in POINTS if not point.startswith("study-")])
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(killed: Path, whole: Path, point: str) -> None:
    folder = killed / point
    left = (folder / ROUNDS).read_bytes()
    assert left != (whole / ROUNDS).read_bytes()
    warnings: list[str] = []
    outcome = run(E, folder, on_warning=warnings.append)
    expected = {"first-round": 0, "states-not-forgotten": ROUND}.get(point, ROUND - 1)
    assert (outcome.finished, outcome.resumed_at, warnings) == (True, expected, [])
    assert (folder / ROUNDS).read_bytes() == (whole / ROUNDS).read_bytes()
    assert [json.loads(line)["round"] for line in (folder / SECONDS).read_text().splitlines()] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in folder.glob("state-*.bin")) == ["state-4.bin", "state-5.bin"]
    assert (folder / "state-5.bin").read_bytes() == (whole / "state-5.bin").read_bytes()


@pytest.mark.parametrize("point", [point for point in POINTS if point.startswith("study-")])
def test_a_study_that_was_killed_goes_on_to_the_same_numbers(killed: Path, whole: Path, point: str) -> None:
    with Store.open(killed / point) as store:
        store.release("w", died=True)
        assert one_by_one(store, {E.id}, "v", WorkOptions())
        (done,) = store.runs()
        assert done.status == "done"
        records = store.rounds(E.id)
        assert len(store.seconds(E.id)) == len(records) == 5
        resumed = {"study-state": ROUND, "study-not-finished": 5, "study-not-forgotten": 0}.get(point, ROUND - 1)
        assert (done.provenance or {})["resumed_at"] == resumed
    lines = [json.dumps(record, separators=(",", ":")) for record in records]
    assert lines == (whole / ROUNDS).read_text().splitlines()
    if point != "study-not-forgotten":
        assert not (killed / point / "runs" / E.id).exists(), "nobody starts from its model"


def test_a_round_is_appended_and_nothing_before_it_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    run(E, tmp_path, on_round=lambda r: seen.append(((s := (tmp_path / ROUNDS).stat()).st_ino, s.st_size)))
    assert len({inode for inode, _ in seen}) == 1, "the file is not replaced"
    assert [size for _, size in seen] == sorted({size for _, size in seen})


def test_a_file_that_another_program_changed_is_written_anew(tmp_path: Path, whole: Path) -> None:
    def meddle(record: Any) -> None:
        if record.state.round == 2:
            (tmp_path / ROUNDS).write_text("nothing\n")

    run(E, tmp_path, on_round=meddle)
    assert (tmp_path / ROUNDS).read_bytes() == (whole / ROUNDS).read_bytes()


def test_a_studys_rounds_are_in_the_store_alone(tmp_path: Path) -> None:
    asked = iter([False, False, False, True])
    with Store.open(tmp_path) as store:
        from honestly.runs.rows import PlannedRun

        store.add([PlannedRun(E.id, {"seed": 7}, E.canonical, 5)])
        assert not one_by_one(store, {E.id}, "w", WorkOptions(halt=lambda: next(asked)))
        assert len(store.rounds(E.id)) == 3
        assert sorted(p.name for p in store.run_folder(E.id).iterdir()) == ["state-2.bin", "state-3.bin"]
