"""Results of several machines are merged: nothing is lost or duplicated, and other files are refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from half_done_study import STUDY

from honestly.cli import main
from honestly.runs.export import archive, export
from honestly.runs.states import States
from honestly.runs.store import PlannedRun, Store
from honestly.runs.transfer import take_in
from honestly.sim.experiment import Experiment
from honestly.sim.run import run as simulate
from honestly.studies.study import Study
from honestly.studies.work import WorkOptions, one_by_one


def finish(store: Store) -> None:
    """Resume the imported study, which must give the same numbers as an uninterrupted one."""
    assert one_by_one(store, {run.id for run in store.runs()}, "w", WorkOptions())
    for run in store.runs():
        assert run.status == "done"
        assert store.rounds(run.id) == simulate(Experiment.of(run.experiment)).records


def test_a_study_is_exported_while_its_runs_go_on(
    theirs: Store, mine: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state is removed between the moment when it is found and the moment when it is read."""
    shutil.copytree(theirs.folder, tmp_path / "theirs")
    found: list[int] = []

    def latest(self: States, most: int) -> int | None:
        numbers = [n for n in self.rounds() if n <= most]
        if len(numbers) == 2 and not found:
            found.append(numbers[1])
            self.path(numbers[1]).unlink()
            return numbers[1]
        return numbers[0] if numbers else None

    monkeypatch.setattr(States, "latest", latest)
    with Store.open(tmp_path / "theirs") as store:
        assert archive(store, tmp_path / "study.tar.gz") == 1
    assert found
    assert take_in(mine, tmp_path / "study.tar.gz").begun == 1
    finish(mine)


def test_a_study_is_taken_in_while_its_runs_go_on(
    theirs: Store, mine: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round ends whenever a state is read or the rounds are asked for: an old state goes, there is one more round."""
    shutil.copytree(theirs.folder, tmp_path / "theirs")
    running = theirs.runs()[1]
    last = theirs.last_round(running.id)
    assert last is not None
    files = States(tmp_path / "theirs" / "runs" / running.id)
    read, path, rounds = Path.read_bytes, files.path, iter(range(3, 9))

    def one_more_round(id: str = running.id) -> None:
        if id == running.id and (round := next(rounds, None)) is not None:
            with Store.open(tmp_path / "theirs") as store:
                store.write_round(running.id, {**last, "round": round}, {"train": 1.0})
            files.write(round, read(path(round - 1)))

    def read_bytes(self: Path) -> bytes:
        if self.name == "state-1.bin":
            one_more_round()
        return read(self)

    def after(method: Any) -> Any:
        def called(self: Store, id: str) -> Any:
            found = method(self, id)
            one_more_round(id)
            return found

        return called

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    for name in ("rounds", "seconds", "timed_rounds"):
        monkeypatch.setattr(Store, name, after(getattr(Store, name)))
    assert take_in(mine, tmp_path / "theirs").begun == 1
    there = States(mine.run_folder(running.id)).rounds()
    assert there == [3, 2]
    assert mine.run(running.id).rounds >= there[0]
    with Store.read(tmp_path / "theirs") as store:
        assert export(store, "rounds", tmp_path / "rounds.csv") == 3 + 4


@pytest.mark.parametrize("form", ["folder", "archive", "database"])
def test_a_study_goes_on_elsewhere(theirs: Store, mine: Store, tmp_path: Path, form: str) -> None:
    path = theirs.folder
    if form == "archive":
        path = tmp_path / "study.tar.gz"
        assert archive(theirs, path) == 1
        assert path.stat().st_size < 200_000
    elif form == "database":
        path = tmp_path / "copy.sqlite"
        for part in ("", "-wal"):
            if (file := theirs.folder / f"study.sqlite{part}").exists():
                shutil.copyfile(file, f"{path}{part}")
    taken = take_in(mine, path)
    unfinished = 0 if form == "database" else 1  # the database alone has no model to go on from
    assert (taken.done, taken.begun) == (1, unfinished)
    assert [run.rounds for run in mine.runs()] == [3, 2 * unfinished, 0, 0]
    assert [run.cell for run in mine.runs()] == [run.cell for run in theirs.runs()]
    assert mine.meta()["study"] == STUDY
    if form != "database":
        finish(mine)
        resumed = [(run.provenance or {})["resumed_at"] for run in mine.runs()]
        assert resumed == [0, 2, 0, 0]
    again = take_in(mine, path)
    assert (again.done, again.begun, again.there) == (0, 0, 4 if unfinished else 1)


def test_two_shards_make_a_whole(tmp_path: Path) -> None:
    entries = Study.parse(STUDY).entries()
    folders = [tmp_path / "a", tmp_path / "b"]
    for n, folder in enumerate(folders):
        with Store.open(folder) as store:
            store.add(entries)
            one_by_one(store, {e.id for e in entries[n::2]}, "w", WorkOptions())
    with Store.open(tmp_path / "whole") as whole:
        for folder in folders:
            assert take_in(whole, folder).done == 2
        assert [run.cell for run in whole.runs()] == [e.cell for e in entries]
        assert all(run.status == "done" and len(whole.rounds(run.id)) == 3 for run in whole.runs())


OTHER = STUDY.replace('"small"', '"other"').replace('"mean", "median"', '"geometric_median", "mean"')


@pytest.mark.parametrize("form", ["folder", "lines"])
def test_what_two_studies_have_in_common_is_run_once(theirs: Store, tmp_path: Path, form: str) -> None:
    path = theirs.folder
    if form == "lines":
        path = tmp_path / "runs.jsonl"
        export(theirs, "runs", path)
    toml, out = tmp_path / "other.toml", tmp_path / "other"
    toml.write_text(OTHER)
    assert main(["bench", str(toml), "--out", str(out), "--reuse", str(path), "--quiet"]) == 0
    entries = Study.parse(toml.read_text()).entries()
    with Store.read(out) as store:
        assert [run.cell for run in store.runs()] == [entry.cell for entry in entries], "no run of the other study"
        assert store.meta()["name"] == "other"
        ended = {run.cell["seed"]: run.finished for run in store.runs() if run.cell["rule"] == "mean"}
    there = {run.cell["seed"]: run for run in theirs.runs() if run.cell["rule"] == "mean"}
    assert ended[0] == there[0].finished
    assert there[1].finished is None
    assert ended[1] is not None, "it was begun there, and is finished here"


def test_what_is_done_here_stays_and_differences_are_told(theirs: Store, mine: Store) -> None:
    mine.add(Study.parse(STUDY).entries())
    first = mine.runs()[0].id
    mine.finish(first, {"accuracy_last": 0.123}, {})
    taken = take_in(mine, theirs.folder)
    assert (taken.there, taken.differ, taken.begun) == (1, 1, 1)
    assert "other numbers" in str(taken)
    assert mine.run(first).summary == {"accuracy_last": 0.123}


def test_json_lines_come_back_whole(theirs: Store, mine: Store, tmp_path: Path) -> None:
    assert export(theirs, "runs", tmp_path / "runs.jsonl.gz") == 4
    assert export(theirs, "rounds", tmp_path / "rounds.jsonl") == 5
    taken = take_in(mine, tmp_path / "runs.jsonl.gz")
    assert (taken.done, taken.begun) == (1, 0), "without a model only finished runs are of use"
    taken = take_in(mine, tmp_path / "rounds.jsonl")
    assert taken.rounds == 3
    (run,) = mine.runs()
    there = theirs.run(run.id)
    assert (run.summary, run.provenance, run.cell) == (there.summary, there.provenance, there.cell)
    assert mine.rounds(run.id) == theirs.rounds(run.id)
    assert mine.seconds(run.id) == theirs.seconds(run.id)


def test_csv_is_what_was_measured(theirs: Store, tmp_path: Path) -> None:
    assert export(theirs, "runs", tmp_path / "runs.csv") == 4
    assert export(theirs, "rounds", tmp_path / "rounds.csv.gz") == 5
    rows = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text())))
    assert [row["id"] for row in rows] == [run.id for run in theirs.runs()]
    done = theirs.runs()[0]
    assert done.summary is not None
    assert float(rows[0]["accuracy_last"]) == done.summary["accuracy_last"]
    assert (rows[0]["rule"], rows[0]["seed"], rows[0]["status"], rows[1]["status"]) == ("mean", "0", "done", "pending")
    assert rows[0]["torch"]
    assert rows[0]["device"]
    with gzip.open(tmp_path / "rounds.csv.gz", "rt") as file:
        rounds = list(csv.DictReader(file))
    records = [record for run in theirs.runs() for record in theirs.rounds(run.id)]
    assert [float(row["accuracy"]) for row in rounds] == [record["accuracy"] for record in records]
    assert [json.loads(row["attacked"]) for row in rounds] == [record["attacked"] for record in records]
    with pytest.raises(ValueError, match=r"one of \.csv"):
        export(theirs, "runs", tmp_path / "runs.xlsx")
    with pytest.raises(ValueError, match=r"\.tar\.gz"):
        archive(theirs, tmp_path / "study.zip")


def test_text_that_a_spreadsheet_would_run_is_defused(mine: Store, tmp_path: Path) -> None:
    mine.add(Study.parse(STUDY).entries())
    mine.fail(mine.runs()[0].id, '=HYPERLINK("x"), "quoted"\nand a line')
    export(mine, "runs", tmp_path / "runs.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text(), newline="")))
    assert rows[0]["error"] == '\'=HYPERLINK("x"), "quoted"\\nand a line'


def test_names_of_axes_that_a_spreadsheet_would_run_are_defused(mine: Store, tmp_path: Path) -> None:
    mine.add([PlannedRun("a", {"=1+1": 3}, "{}", 1)])
    mine.write_round("a", {"round": 1})
    for what in ("runs", "rounds"):
        export(mine, what, tmp_path / "out.csv")
        assert "'=1+1" in (tmp_path / "out.csv").read_text().split("\n")[0].split(",")


def test_a_warm_up_without_its_model_is_done_again(tmp_path: Path, mine: Store) -> None:
    text = STUDY.replace("rounds = 3", "rounds = 1\nwarm_up = 2").replace("seed = [0, 1]", "seed = [0]")
    with Store.open(tmp_path / "theirs") as store:
        store.add(Study.parse(text).entries())
        store.set_meta(name="small", study=text)
        start = store.runs()[0].id
        one_by_one(store, {start}, "w", WorkOptions())
        archive(store, tmp_path / "with.tar.gz")
        shutil.rmtree(store.run_folder(start))
        archive(store, tmp_path / "without.tar.gz")
    mine.add(Study.parse(text).entries())
    assert take_in(mine, tmp_path / "without.tar.gz").done == 0
    assert mine.run(start).status == "pending"
    assert take_in(mine, tmp_path / "with.tar.gz").done == 1
    finish(mine)
    assert (mine.run(start).provenance or {})["resumed_at"] == 0


def test_a_model_that_nobody_starts_from_any_more_stays_at_home(tmp_path: Path, mine: Store) -> None:
    text = STUDY.replace("rounds = 3", "rounds = 1\nwarm_up = 2").replace("seed = [0, 1]", "seed = [0]")
    with Store.open(tmp_path / "theirs") as store:
        store.add(Study.parse(text).entries())
        start, first, _ = (run.id for run in store.runs())
        one_by_one(store, {start, first}, "w", WorkOptions())
        assert archive(store, tmp_path / "half.tar.gz") == 1, "the second one starts from it"
        finish(store)
        assert store.run_folder(start).is_dir()
        assert archive(store, tmp_path / "all.tar.gz") == 0
    assert take_in(mine, tmp_path / "all.tar.gz").done == 3, "and it is not done again"
    assert mine.count_open({run.id for run in mine.runs()}) == 0
