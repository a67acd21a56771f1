"""Several processes write at once, any of them may die, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from honestly.runs import database
from honestly.runs.store import ATTEMPTS, LostClaimError, PlannedRun, Store, StoreError


def entry(name: str, needs: str | None = None, **cell: Any) -> PlannedRun:
    return PlannedRun(name, {"name": name, **cell}, json.dumps({"name": name}), 5, needs)


def record(number: int) -> dict[str, Any]:
    return {"round": number, "accuracy": number / 10}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "study") as store:
        yield store


def claim_all(store: Store, worker: str, among: set[str] | None = None) -> list[str]:
    found: list[str] = []
    while (run := store.claim(worker, among=among)) is not None:
        found.append(run.id)
    return found


def test_a_run_from_claim_to_end(store: Store) -> None:
    store.add([entry("a", rule="Ours"), entry("b")])
    run = store.claim("w")
    assert run is not None
    assert (run.id, run.cell, run.experiment, run.status, run.worker, run.attempts, run.rounds, run.of) == (
        "a", {"name": "a", "rule": "Ours"}, {"name": "a"}, "running", "w", 1, 0, 5,
    )  # fmt: skip
    store.write_round("a", record(1), {"train": 0.5}, worker="w")
    store.write_round("a", record(2), worker="w")
    store.write_round("a", record(2), {"train": 0.25}, worker="w")
    assert store.rounds("a") == [record(1), record(2)]
    assert store.seconds("a") == [{"train": 0.5}, {"train": 0.25}]
    assert (store.run("a").rounds, store.last_round("a")) == (2, record(2))
    store.finish("a", {"accuracy_last": 0.5}, {"seed": 3}, worker="w")
    done = store.run("a")
    assert (done.status, done.summary, done.provenance, done.error) == (
        "done",
        {"accuracy_last": 0.5},
        {"seed": 3},
        None,
    )
    assert done.finished is not None
    other = store.claim("w")
    assert other is not None
    store.fail("b", "no such thing")
    assert (store.run("b").status, store.run("b").error) == ("failed", "no such thing")
    assert store.claim("w") is None
    assert (store.count_open({"a", "b"}), store.retry(["a", "b"]), store.count_open({"a", "b"})) == (0, 1, 1)
    with pytest.raises(KeyError, match="no run 'z'"):
        store.run("z")


def test_a_reader_sees_what_a_writer_does_and_cannot_write(store: Store) -> None:
    store.add([entry("a")])
    with Store.read(store.folder) as reader:
        before = reader.version()
        assert reader.version() == before
        store.claim("w")
        assert reader.version() != before
        assert reader.run("a").status == "running"
        with pytest.raises(StoreError, match=r"cannot write .*readonly.*--out"):
            reader.fail("a", "no")


def test_a_silent_worker_loses_its_run_and_may_not_write_any_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([entry("a")])
    now = time.time()
    assert store.claim("slow") is not None
    store.write_round("a", record(1), worker="slow")
    assert store.claim("quick") is None, "it was heard of just now"
    monkeypatch.setattr(time, "time", lambda: now + 50)
    store.heartbeat("slow")
    monkeypatch.setattr(time, "time", lambda: now + 90)
    assert store.claim("quick") is None, "a heartbeat holds it"
    monkeypatch.setattr(time, "time", lambda: now + 170)
    run = store.claim("quick")
    assert run is not None
    assert run.rounds == 1
    for write in (
        lambda: store.write_round("a", record(2), worker="slow"),
        lambda: store.finish("a", {}, {}, worker="slow"),
        lambda: store.fail("a", "?", worker="slow"),
        lambda: store.keep_rounds("a", 0, worker="slow"),
    ):
        with pytest.raises(LostClaimError):
            write()
    assert store.rounds("a") == [record(1)]
    store.heartbeat("slow")
    store.write_round("a", record(2), worker="quick")


def test_a_heartbeat_counts_for_the_tasks_of_a_driver_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add([entry("a"), entry("b")])
    now = time.time()
    store.claim("host/1/x-7")
    store.claim("host/1/xy-7")
    monkeypatch.setattr(time, "time", lambda: now + 50)
    store.heartbeat("host/1/x")
    monkeypatch.setattr(time, "time", lambda: now + 90)
    assert claim_all(store, "w") == ["b"]


def test_a_run_that_takes_down_every_worker_ends_as_failed_but_one_that_gets_on_does_not(store: Store) -> None:
    store.add([entry("a"), entry("b")])
    for _ in range(ATTEMPTS):
        run = store.claim("w")
        assert run is not None
        assert run.id == "a"
        assert store.release("w", died=True) == 1
    run = store.claim("w")
    assert run is not None
    assert run.id == "b"
    assert store.run("a").status == "failed"
    assert "died 3 times" in str(store.run("a").error)
    for number in range(1, 8):  # b loses its worker again and again, after a round each time
        store.write_round("b", record(number), worker="w")
        store.release("w", died=True)
        assert store.claim("w") is not None
    for _ in range(9):  # a clean stop does not count as a crash
        store.release("w")
        assert store.claim("w") is not None


def test_runs_wait_for_the_one_they_start_from(store: Store) -> None:
    store.add([entry("start"), entry("a", "start"), entry("b", "start"), entry("free")])
    assert claim_all(store, "v") == ["start", "free"]
    store.finish("start", {}, {})
    assert claim_all(store, "w", {"b", "free"}) == ["b"]
    with Store.open(store.folder) as again:
        assert again.needs() == {"a": "start", "b": "start"}


def test_runs_whose_start_failed_fail_with_it(store: Store) -> None:
    store.add([entry("start"), entry("a", "start")])
    store.fail("start", "no data")
    assert store.claim("w") is None
    assert "starts from, start, failed" in str(store.run("a").error)


def test_a_study_that_changed(store: Store) -> None:
    store.add([entry("a"), entry("b"), entry("c")])
    store.claim("w")
    store.finish("a", {}, {})
    store.add([entry("d"), entry("b")])
    assert [(run.id, run.status) for run in store.runs()] == [("a", "done"), ("d", "pending"), ("b", "pending")]
    other = PlannedRun("a2", {"name": "a"}, "{}", 9)
    with pytest.raises(StoreError, match=r"1 run\(s\) of an earlier form .*--replace"):
        store.add([other, entry("b")])
    assert store.run("a").status == "done"
    store.add([other, entry("b")], replace=True)
    assert [run.id for run in store.runs()] == ["a2", "b"]


CLAIMER = """
import sys
from honestly.runs.store import Store
store, worker = Store.open(sys.argv[1]), sys.argv[2]
while (run := store.claim(worker)) is not None:
    for n in range(1, 6):
        store.write_round(run.id, {"round": n, "by": worker}, {"train": n}, worker=worker)
    store.finish(run.id, {"by": worker}, {}, worker=worker)
    print(run.id)
"""


def test_processes_write_at_once_and_every_run_is_done_once(store: Store) -> None:
    names = [f"{n:03d}" for n in range(40)]
    store.add([entry(name) for name in names])
    workers = [
        subprocess.Popen([sys.executable, "-c", CLAIMER, str(store.folder), f"w{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    claimed = [worker.communicate(timeout=60)[0].split() for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    assert sorted(name for part in claimed for name in part) == names
    for run in store.runs():
        assert run.status == "done"
        assert run.summary is not None
        rounds = store.rounds(run.id)
        assert rounds == [{"round": n, "by": run.summary["by"]} for n in range(1, 6)]


WRITER = """
import sys
from honestly.runs.store import Store
store = Store.open(sys.argv[1])
store.claim("w")
store.keep_rounds("a", 0, worker="w")
print("ready", flush=True)
n = 0
while True:
    n += 1
    store.write_round("a", {"round": n, "text": "x" * 3000}, {}, worker="w")
"""


def test_a_killed_writer_leaves_whole_rounds(store: Store) -> None:
    store.add([entry("a")])
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store.folder)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.2)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        store.release("w")
        rounds = [r["round"] for r in store.rounds("a")]
        assert rounds == list(range(1, len(rounds) + 1))
        assert len(rounds) == store.run("a").rounds > 0
        assert store.database.rows("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"no database at all" * 100), "damaged or not an SQLite file"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE mine(x)").connection.close(), "not of a study"),
        (lambda path: path.mkdir(), "cannot write"),
    ],
)
def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path, make: Any, message: str) -> None:
    path = tmp_path / database.FILE
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=message):
        Store.open(tmp_path)
    if path.is_file():
        assert path.read_bytes() == before
        with pytest.raises(StoreError, match=message):
            Store.read(tmp_path)


def test_other_versions_files_and_missing_studies_are_named(tmp_path: Path) -> None:
    with Store.open(tmp_path / "later") as store:
        store.set_meta(schema="9")
    with pytest.raises(StoreError, match="schema 9"):
        Store.open(tmp_path / "later")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        Store.open(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot create"):
        Store.open(Path("/proc/honestly/study"))
    with pytest.raises(StoreError, match="no study in"):
        Store.read(tmp_path)
    assert not (tmp_path / database.FILE).exists()


def test_a_damaged_page_is_noticed(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.add([entry(f"{n}", text="x" * 300) for n in range(200)])
    path = tmp_path / database.FILE
    content = bytearray(path.read_bytes())
    content[4096 : len(content) - 4096] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged .*--import"), Store.open(tmp_path) as store:
        store.runs()


@pytest.mark.parametrize("statement", [b"CREATE TABLE meta(", b"CREATE XABLE meta("])
def test_a_name_that_is_no_text_is_damage(tmp_path: Path, statement: bytes) -> None:
    Store.open(tmp_path).close()
    path = tmp_path / database.FILE
    content = path.read_bytes().replace(b"tablemetameta", b"table\xff\x88tameta")
    path.write_bytes(content.replace(b"CREATE TABLE meta(", statement))
    with pytest.raises(StoreError, match=r"damaged .*--import"):
        Store.read(tmp_path)


@pytest.mark.parametrize("text", ["nope", "[1, 2]", "[" * 100_000, ""])
def test_a_cell_that_somebody_else_wrote_is_told(store: Store, text: str) -> None:
    store.add([entry("a")])
    store.claim("w")
    store.write_round("a", record(1), worker="w")
    store.database.rows("UPDATE rounds SET record = ?", (text,))
    for look in (store.rounds, store.last_round):
        with pytest.raises(StoreError, match=r"round of run 'a' is .* not a JSON object"):
            look("a")
    store.database.rows("UPDATE runs SET summary = ?", (text,))
    with pytest.raises(StoreError, match=r"summary of run 'a' is .* not a JSON object"):
        store.runs()


def test_a_full_disk_is_told_and_what_was_written_stays(store: Store) -> None:
    store.add([entry("a")])
    store.claim("w")
    store.write_round("a", record(1), worker="w")
    pages = store.database.rows("PRAGMA page_count")[0][0]
    store.database.rows(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="the disk is full"):
        store.write_round("a", {"round": 2, "text": "x" * 100_000}, worker="w")
    assert store.rounds("a") == [record(1)]
    store.database.rows(f"PRAGMA max_page_count = {pages + 1000}")
    store.write_round("a", {"round": 2}, worker="w")


def test_a_store_on_a_disk_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path) as store:
        store.add([entry("a")])
    connect = sqlite3.connect

    def refuse(address: Any, **options: Any) -> sqlite3.Connection:
        if "immutable=1" not in str(address):  # SQLite's error when it cannot create its side files
            raise sqlite3.OperationalError("unable to open database file")
        return connect(address, **options)

    monkeypatch.setattr(sqlite3, "connect", refuse)
    with Store.read(tmp_path) as reader:
        assert [run.id for run in reader.runs()] == ["a"]
