"""A study's database, read while it is written, removed or damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from study_being_run import FakeStudy

from honestly.runs import store
from honestly.show.live.model import SourceError
from honestly.show.live.source import open_source
from honestly.show.live.study import DATABASE, StudySource


@pytest.fixture
def study(tmp_path: Path) -> Iterator[FakeStudy]:
    made = FakeStudy(tmp_path)
    yield made
    made.close()


@pytest.fixture
def source(study: FakeStudy, tmp_path: Path) -> Iterator[StudySource]:
    found = open_source(tmp_path)
    assert isinstance(found, StudySource)
    yield found
    found.close()


def test_runs_in_every_state(study: FakeStudy, source: StudySource) -> None:
    first, second, third, *_ = study.ids()
    look = source.look()
    assert (look.kind, look.name) == ("study", "invented")
    assert {run.status for run in look.runs} == {"pending"}
    study.advance(first, 4)
    study.finish(second)
    study.advance(third, 1)
    study.store.fail(third, "<b>boom</b>\n" + "x" * 100_000)
    one, two, three, *_ = source.look().runs
    assert (one.status, one.rounds, one.of) == ("running", 4, 10)
    assert one.accuracy == pytest.approx(0.9 - 0.8 * 0.8**4, abs=1e-4)
    assert two.status == "done"
    assert two.cell == {"attack": "sign_flip", "rule": "Median", "seed": 0}
    assert (three.status, three.error[:11]) == ("failed", "<b>boom</b>")
    assert len(three.error) <= 4000
    found = source.detail(first)
    assert found is not None
    assert len(found.rounds) == 4
    assert source.detail("nobody") is None


def test_a_silent_worker_and_a_released_run(
    study: FakeStudy, source: StudySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = study.ids()
    study.advance(first, 2)
    study.advance(second, 2, worker="two")
    study.store.release("two")
    assert [run.status for run in source.look().runs[:2]] == ["running", "stopped"]
    monkeypatch.setattr(store, "LEASE", -1.0)
    assert source.look().runs[0].status == "stopped"


def test_nothing_is_read_again_without_changes(
    study: FakeStudy, source: StudySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.advance(study.ids()[0], 2)
    before, detail = source.look(), source.detail(study.ids()[0])
    monkeypatch.setattr(source, "_rows", lambda *_: pytest.fail("read again"))
    assert source.look() == before
    assert source.detail(study.ids()[0]) is detail


def test_only_new_rounds_of_a_running_run_are_read(
    study: FakeStudy, source: StudySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = study.ids()[0]
    for rounds in (3, 1, 1):
        study.advance(first, rounds)
        assert source.look().runs[0].accuracy == pytest.approx(study.store.rounds(first)[-1]["accuracy"], abs=1e-4)
    read: list[int] = []
    rows = source.store.database.rows

    def counted(query: str, values: Sequence[Any] = ()) -> list[Any]:
        found = rows(query, values)
        if "FROM rounds" in query:
            read.append(len(found))
        return found

    monkeypatch.setattr(source.store.database, "rows", counted)
    study.advance(first, 1)
    assert source.look().runs[0].rounds == 6
    assert read == [1]


def test_a_study_that_is_removed_and_created_again(study: FakeStudy, source: StudySource, tmp_path: Path) -> None:
    source.look()
    study.close()
    for path in tmp_path.glob(DATABASE + "*"):
        path.unlink()
    with pytest.raises(SourceError, match="removed"):
        source.look()
    again = FakeStudy(tmp_path, rules=("Other",))
    with pytest.raises(SourceError, match="replaced"):
        source.look()
    new = open_source(tmp_path)
    assert {run.cell["rule"] for run in new.look().runs} == {"Other"}
    new.close()
    again.close()


@pytest.mark.parametrize("damage", ["rubbish", "empty", "half", "another"])
def test_a_damaged_database_is_named(tmp_path: Path, damage: str) -> None:
    study = FakeStudy(tmp_path, rounds=200)
    study.finish(study.ids()[0])
    study.store.database.connection.execute("PRAGMA journal_mode = DELETE")
    study.close()
    path = tmp_path / DATABASE
    if damage == "rubbish":
        path.write_bytes(b"x" * 5000)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "half":
        path.write_bytes(path.read_bytes()[:9000])
    else:
        path.unlink()
        other = sqlite3.connect(path)
        other.execute("CREATE TABLE t(x)")
        other.close()
    with pytest.raises(SourceError, match=DATABASE):  # noqa: PT012
        source = open_source(tmp_path)
        try:
            source.look()
            source.detail(study.ids()[0])
        finally:
            source.close()


@pytest.mark.parametrize("rubbish", ["{", "[" * 100_000, "[1]", '"x"', "NaN"])
def test_rubbish_in_a_row_is_reported(study: FakeStudy, source: StudySource, rubbish: str) -> None:
    first = study.ids()[0]
    study.advance(first, 2)
    with study.store.database.writing() as db:
        db.execute("UPDATE rounds SET record = ?", (rubbish,))
        db.execute("UPDATE runs SET summary = ?, experiment = ?, error = ?", (rubbish, rubbish, rubbish))
    with pytest.raises(SourceError, match=r"is damaged: .* of run .* not a JSON object"):
        source.look()
