"""Results of several machines are merged: nothing is lost or duplicated, and other files are refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from honestly.cli import main
from honestly.runs import transfer
from honestly.runs.export import archive, export
from honestly.runs.states import States
from honestly.runs.store import PlannedRun, Store, StoreError
from honestly.runs.transfer import take_in
from honestly.sim.experiment import Experiment
from honestly.sim.run import run as simulate
from honestly.studies.study import Study
from honestly.studies.work import WorkOptions, one_by_one

STUDY = """
name = "small"
[base]
clients = 4
rounds = 3
epochs = 1
model = "mlp"
[axes]
rule = ["mean", "median"]
seed = [0, 1]
"""


def half_done(folder: Path, text: str = STUDY) -> Store:
    """One run is done, one stopped after its second round, the others have not started."""
    store = Store.open(folder)
    entries = Study.parse(text).entries()
    store.add(entries)
    store.set_meta(name="small", study=text)
    everything = {e.id for e in entries}
    one_by_one(store, {entries[0].id}, "w", WorkOptions())
    asked = iter([False, False, True])
    one_by_one(store, everything, "w", WorkOptions(halt=lambda: next(asked)))
    assert [(run.status, run.rounds) for run in store.runs()] == [
        ("done", 3),
        ("pending", 2),
        ("pending", 0),
        ("pending", 0),
    ]
    return store


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with half_done(tmp_path_factory.mktemp("theirs")) as store:
        yield store


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "mine") as store:
        yield store


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


def packed(path: Path, members: dict[str, bytes], **more: Any) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(body))
    return path


@pytest.mark.parametrize(
    "name", ["../escape", "/etc/cron.d/x", "runs/../../x", "runs/abc/state-1.bin", f"runs/{'a' * 64}/evil.py", "x"]
)
def test_an_archive_brings_nothing_but_a_study(mine: Store, tmp_path: Path, name: str) -> None:
    path = packed(tmp_path / "evil.tar.gz", {name: b"boo"})
    with pytest.raises(ValueError, match="not part of a study"):
        take_in(mine, path)
    assert not (tmp_path / "escape").exists()


def test_an_archive_that_unpacks_to_a_thousand_times_its_size_is_refused(mine: Store, tmp_path: Path) -> None:
    path = packed(tmp_path / "bomb.tar.gz", {"study.sqlite": bytes(transfer.ANY_SIZE + 1)})
    with pytest.raises(ValueError, match="unpacks to more than 200 times its size"):
        take_in(mine, path)


def test_links_and_damaged_files_are_refused(theirs: Store, mine: Store, tmp_path: Path) -> None:
    link = packed(tmp_path / "link.tar.gz", {"study.sqlite": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd")
    with pytest.raises(ValueError, match="not part of a study"):
        take_in(mine, link)
    archive(theirs, tmp_path / "whole.tar.gz")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes((tmp_path / "whole.tar.gz").read_bytes()[:2000])
    (tmp_path / "no.tar.gz").write_bytes(b"hello")
    (tmp_path / "no.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "worse.jsonl").write_text('{"a": \n')
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "no.jsonl.gz").write_bytes(b"hello")
    for name, message in {
        "cut.tar.gz": "damaged", "no.tar.gz": "damaged or no", "no.jsonl": "line 1: neither a run nor a round",
        "worse.jsonl": "line 1: not JSON", "list.jsonl": "line 1: expected an object", "no.jsonl.gz": "damaged",
        "none.jsonl": "no such file", "/dev/null": "give a study's folder",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            take_in(mine, tmp_path / name)
    with pytest.raises(StoreError, match="no study in"):
        take_in(mine, tmp_path)
    with pytest.raises(ValueError, match="the study itself"):
        take_in(mine, mine.folder)
    assert mine.runs() == []


def test_a_run_that_is_not_what_its_id_says_is_refused(theirs: Store, mine: Store, tmp_path: Path) -> None:
    export(theirs, "runs", tmp_path / "runs.jsonl")
    text = (tmp_path / "runs.jsonl").read_text()
    (tmp_path / "runs.jsonl").write_text(text.replace('"clients":4', '"clients":5'))
    with pytest.raises(StoreError, match="does not match the experiment of its id"):
        take_in(mine, tmp_path / "runs.jsonl")


HUGE, HALF, NAN = 10**400, "\ud800", float("nan")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(({"id": value}, "id = ") for value in (None, 3, [])),
        *(({"ordinal": value}, "ordinal = ") for value in (HUGE, "first", None)),
        *(({"cell": value}, "cell = ") for value in (None, [], {"rule": NAN})),
        *(({"experiment": value}, "experiment = ") for value in (None, {"alpha": NAN})),
        ({"of": HALF}, "of = "),
        ({"error": HALF}, "error = "),
        ({"finished": "yesterday"}, "finished = "),
        *(({"summary": {"accuracy_last": value}}, "summary = ") for value in ("high", HUGE, [])),
        *(({"run": value}, "run = ") for value in (HUGE, [], HALF)),
        *(({"record": value}, "record = ") for value in (None, {}, {"round": HUGE}, {"round": 1, "loss": NAN})),
        *(({"seconds": value}, "seconds = ") for value in (None, {"train": "long"})),
    ],
)
def test_values_that_are_no_values_are_refused(
    theirs: Store, mine: Store, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    export(theirs, "rounds" if change.keys() & {"run", "record", "seconds"} else "runs", tmp_path / "good.jsonl")
    line = json.loads((tmp_path / "good.jsonl").read_text().splitlines()[0]) | change
    (tmp_path / "bad.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(StoreError, match=f"is not imported: {said}"):
        take_in(mine, tmp_path / "bad.jsonl")
    assert mine.runs() == []


def test_brackets_without_end_are_refused(mine: Store, tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match="line 1: not JSON"):
        take_in(mine, tmp_path / "deep.jsonl")


def test_a_strangers_store_is_exported_and_reported(theirs: Store, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "study.sqlite") as copy:
        theirs.database.connection.backup(copy)
        copy.execute("UPDATE rounds SET seconds = json_object('train', 'long')")
        copy.execute("UPDATE runs SET summary = json_object('accuracy_last', 'high'), of = 'many', cell = '{}'")
        copy.execute("UPDATE runs SET provenance = '{\"loads\": [1e999]}', rounds = 'few'")
        copy.execute('UPDATE rounds SET record = \'{"round": 1, "clients": [], "loss": 1e999}\' WHERE round = 1')
        copy.execute("UPDATE meta SET value = '{\"a\": []}' WHERE key = 'needs'")
    copy.close()
    for command in (["export", "rounds"], ["export", "runs"]):
        for file in ("out.csv", "out.jsonl"):
            assert main([*command, str(tmp_path), "-o", str(tmp_path / file)]) == 0
    assert "Infinity" not in (tmp_path / "out.jsonl").read_text()
    assert main(["export", "study", str(tmp_path), "-o", str(tmp_path / "out.tar.gz")]) == 0
    assert main(["report", str(tmp_path), "--no-figures"]) == 0
    assert main(["bench", "--out", str(tmp_path), "--dry-run"]) == 0


@pytest.mark.parametrize("column", ["worker", "error", "rounds", "experiment"])
def test_bytes_in_place_of_text_are_damage(
    theirs: Store, tmp_path: Path, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(tmp_path / "study.sqlite") as copy:
        theirs.database.connection.backup(copy)
        copy.execute(f"UPDATE runs SET {column} = x'7b7d'")
    copy.close()
    assert main(["export", "runs", str(tmp_path), "-o", str(tmp_path / "out.jsonl")]) == 1
    assert f"the study is damaged: {column} of a run is b'{{}}'" in capsys.readouterr().err


def test_an_archive_of_a_damaged_study_is_not_written(
    theirs: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(tmp_path / "study.sqlite") as copy:
        theirs.database.connection.backup(copy)
        copy.execute("CREATE TABLE other AS SELECT * FROM rounds")
        (page,) = copy.execute("SELECT rootpage FROM sqlite_master WHERE name = 'other'").fetchone()
        (size,) = copy.execute("PRAGMA page_size").fetchone()
    copy.close()
    with (tmp_path / "study.sqlite").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    assert main(["export", "study", str(tmp_path), "-o", str(tmp_path / "out.tar.gz")]) == 1
    assert "is damaged or not an SQLite file" in capsys.readouterr().err
    assert not (tmp_path / "out.tar.gz").exists()


def test_a_run_without_a_cell_is_damage(theirs: Store, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "study.sqlite") as copy:
        theirs.database.connection.backup(copy)
        copy.execute("UPDATE runs SET cell = NULL")
    copy.close()
    with Store.read(tmp_path) as store, pytest.raises(StoreError, match="the study is damaged: cell of run"):
        store.runs()
