"""Server-sent events of a real server over a real socket."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from study_being_run import FakeStudy
from watch_server import Watched, watched

from honestly.show.live import app, feed


@pytest.fixture
def study(tmp_path: Path) -> Iterator[FakeStudy]:
    made = FakeStudy(tmp_path / "study")
    yield made
    made.close()


@pytest.fixture
def server(study: FakeStudy, tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path / "study", heartbeat=0.3) as found:
        yield found


def eventually(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_first_everything_then_only_what_changed(server: Watched, study: FakeStudy) -> None:
    first, second, *_ = study.ids()
    events = server.events(f"/events?run={first}")
    assert events.answer.getheader("content-type") == "text/event-stream; charset=utf-8"
    events.until(lambda e: len(e.runs) == 6)
    assert events.head["name"] == "invented"
    study.advance(first, 2)
    events.until(lambda e: len(e.details.get(first, [])) == 2)
    study.advance(second, 1)
    seen = events.until(lambda e: e.runs[second]["rounds"] == 1)
    sent = [run["id"] for event, data in seen if event == "state" for run in data.get("runs", [])]
    assert set(sent) == {second}
    study.advance(first, 1)
    seen = events.until(lambda e: len(e.details[first]) == 3)
    assert [(d["start"], len(d["rounds"])) for event, d in seen if event == "rounds"] == [(2, 1)]
    assert second not in events.details


def test_a_broken_connection_resumes_where_it_was(server: Watched, study: FakeStudy) -> None:
    first, second, *_ = study.ids()
    study.advance(first, 4)
    events = server.events(f"/events?run={first}")
    events.until(lambda e: len(e.details.get(first, [])) == 4 and e.id)
    events.next()
    # another tab keeps the run in memory, so the delta is one round and not all of them
    other = server.events(f"/events?run={first}")
    other.until(lambda e: e.details)
    events.close()
    study.advance(first, 1)
    study.advance(second, 1)
    again = server.events(f"/events?run={first}", Last_Event_ID=events.id)
    seen = again.until(lambda e: e.runs.get(second) and e.details.get(first))
    states = [data for event, data in seen if event == "state"]
    assert not any(data.get("anew") for data in states)
    assert {run["id"] for data in states for run in data.get("runs", [])} == {first, second}
    assert [d["start"] for event, d in seen if event == "rounds"] == [4]


def test_a_page_that_opens_a_run_gets_its_rounds_and_not_the_overview_again(server: Watched, study: FakeStudy) -> None:
    first = study.ids()[0]
    study.advance(first, 3)
    events = server.events()
    events.until(lambda e: e.runs and e.id)
    run = server.events(f"/events?run={first}&since={events.id}")
    run.until(lambda e: len(e.details.get(first, [])) == 3)
    assert run.runs == {}


@pytest.mark.parametrize("known", ["00000000-5", "rubbish", "a-b-c", "%00", "-1"])
def test_a_cursor_of_another_server_gets_everything(server: Watched, known: str) -> None:
    events = server.events("/events", Last_Event_ID=known)
    seen = events.until(lambda e: len(e.runs) == 6)
    assert any(data.get("anew") for event, data in seen if event == "state")


def test_a_run_that_was_set_back_loses_its_later_rounds(server: Watched, study: FakeStudy) -> None:
    first = study.ids()[0]
    study.advance(first, 5)
    events = server.events(f"/events?run={first}")
    events.until(lambda e: len(e.details.get(first, [])) == 5)
    study.store.keep_rounds(first, 2)
    events.until(lambda e: len(e.details[first]) == 2)


def test_heartbeats_are_sent_without_changes(server: Watched) -> None:
    events = server.events()
    events.until(lambda e: e.runs)
    began = time.monotonic()
    beats = [events.next()[0] for _ in range(3)]
    assert beats == ["beat"] * 3
    assert 0.4 < time.monotonic() - began < 10


def test_readers_that_leave_are_forgotten_and_reading_stops(
    server: Watched, study: FakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = study.ids()[0]
    study.advance(first, 1)
    many = [server.events(f"/events?run={first}") for _ in range(40)]
    for events in many:
        events.until(lambda e: e.runs and e.details)
    assert server.server.feed.readers == 40
    for events in many:
        events.close()
    eventually(lambda: server.server.feed.readers == 0)
    eventually(lambda: not server.server.feed.ledger.details)
    time.sleep(0.1)  # the look that is under way ends
    looks: list[object] = []
    monkeypatch.setattr(server.server.feed, "_look", looks.append)
    time.sleep(0.3)
    assert not looks


def test_what_was_read_for_an_earlier_reader_is_not_sent_as_news(server: Watched, study: FakeStudy) -> None:
    first = study.ids()[0]
    earlier = server.events()
    earlier.until(lambda e: e.runs)
    earlier.close()
    eventually(lambda: server.server.feed.readers == 0)
    study.advance(first, 3)
    events = server.events()
    seen = events.until(lambda e: e.runs)
    assert events.runs[first]["rounds"] == 3
    assert [event for event, _ in seen].count("state") == 1


def test_the_first_reader_after_a_break_does_not_wait_for_a_heartbeat(study: FakeStudy, tmp_path: Path) -> None:
    """Nothing changes in the break, and reading fails after 10 s without an event."""
    with watched(tmp_path / "study", heartbeat=3600) as server:
        for _ in range(2):
            events = server.events()
            events.until(lambda e: e.runs)
            events.close()
            eventually(lambda: server.server.feed.readers == 0)


def test_more_tabs_than_allowed_and_more_runs_than_allowed(server: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_READERS", 2)
    for _ in range(2):
        server.events().next()
    refused = server.get("/events")
    assert (refused.status, refused.getheader("retry-after")) == (503, "5")
    monkeypatch.undo()
    assert server.get("/events?" + "&".join(f"run={i}" for i in range(25))).status == 400


def test_a_slow_reader_does_not_delay_others(server: Watched, study: FakeStudy) -> None:
    first = study.ids()[0]
    study.advance(first, 1)
    stuck = server.events(f"/events?run={first}")
    stuck.next()
    events = server.events(f"/events?run={first}")
    events.until(lambda e: e.details)
    for t in range(2, 11):
        study.advance(first, 1)
        events.until(lambda e, t=t: len(e.details[first]) == t)
    stuck.until(lambda e: len(e.details.get(first, [])) == 10)


def test_a_folder_that_is_missing_created_removed_and_created_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with watched(folder) as server:
        events = server.events()
        events.until(lambda e: "not there yet" in e.head.get("problem", ""))
        study = FakeStudy(folder)
        events.until(lambda e: len(e.runs) == 6 and not e.head["problem"])
        study.close()
        shutil.rmtree(folder)
        events.until(lambda e: "removed" in e.head["problem"] or "not there" in e.head["problem"])
        assert len(events.runs) == 6  # what was read last stays
        study = FakeStudy(folder, rules=("Other",))
        study.store.set_meta(name="second")
        events.until(lambda e: e.head["name"] == "second" and not e.head["problem"])
        assert {run["cell"]["rule"] for run in events.runs.values()} == {"Other"}
        study.close()


def test_a_database_damaged_while_it_is_watched_is_reported(tmp_path: Path) -> None:
    study = FakeStudy(tmp_path)
    study.close()
    path = tmp_path / "study.sqlite"
    good = path.read_bytes()
    with watched(tmp_path) as server:
        events = server.events()
        events.until(lambda e: len(e.runs) == 6)
        path.unlink()
        path.write_bytes(b"rubbish" * 1000)
        events.until(lambda e: "damaged" in e.head["problem"])
        path.unlink()
        path.write_bytes(good)
        events.until(lambda e: not e.head["problem"])
        assert len(events.runs) == 6


def test_a_locked_database_is_reported_and_does_not_delay_the_end(tmp_path: Path) -> None:
    study = FakeStudy(tmp_path)
    study.store.database.connection.execute("PRAGMA journal_mode = DELETE")
    with watched(tmp_path) as server:
        events = server.events()
        events.until(lambda e: len(e.runs) == 6)
        study.store.database.connection.execute("BEGIN EXCLUSIVE")
        events.until(lambda e: "locked by another program" in e.head["problem"])
        study.store.database.connection.execute("COMMIT")
        events.until(lambda e: not e.head["problem"])
        study.advance(study.ids()[0], 2)
        events.until(lambda e: e.runs[study.ids()[0]]["rounds"] == 2)
        study.store.database.connection.execute("BEGIN EXCLUSIVE")
        events.until(lambda e: "locked by another program" in e.head["problem"])
        time.sleep(0.3)  # it tries again meanwhile
        server.server.end()
        with pytest.raises(EOFError):
            events.until(lambda e: False)
    study.close()


def test_an_unexpected_error_is_shown_and_does_not_end_the_watch(
    server: Watched, study: FakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = server.events()
    events.until(lambda e: e.runs)
    with monkeypatch.context() as broken:
        broken.setattr(feed.Feed, "_read", lambda self, wanted: 1 / 0)
        events.until(lambda e: "division by zero" in e.head["problem"])
    events.until(lambda e: not e.head["problem"])


def test_stopping_ends_every_stream_at_once(study: FakeStudy, tmp_path: Path) -> None:
    with watched(tmp_path / "study") as server:
        server.server.config.timeout_graceful_shutdown = None  # uvicorn itself would wait for the readers for ever
        readers = [server.events() for _ in range(5)]
        for events in readers:
            events.until(lambda e: e.runs)
        server.server.end()
        for events in readers:
            with pytest.raises(EOFError):
                events.until(lambda e: False)
