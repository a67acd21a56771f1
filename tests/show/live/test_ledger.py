"""A client that reads the events, even with interruptions, has the same state as the ledger."""

from __future__ import annotations

import random
from typing import Any

import pytest

from honestly.show.live.ledger import Cursor, Ledger
from honestly.show.live.model import Detail, RunRow, Snapshot


class Reader:
    """A page: applies events, remembers its cursor."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None
        self.head: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        self.rounds: dict[str, list[Any]] = {}
        self.events = 0

    def read(self, ledger: Ledger, wanted: list[str]) -> None:
        for event, data in ledger.after(self.cursor, dict.fromkeys(wanted, self.cursor)):
            self.events += 1
            if event == "state":
                if data.get("anew"):
                    self.runs, self.rounds = {}, {}
                self.head = data.get("head", self.head)
                self.runs |= {run["id"]: run for run in data.get("runs", [])}
            else:
                self.rounds.setdefault(data["run"], [])[data["start"] :] = data["rounds"]
        self.cursor = ledger.cursor


def look(rounds: dict[str, int], name: str = "s") -> Snapshot:
    return Snapshot("study", name, tuple(RunRow(id, {"rule": id}, "running", n, 10) for id, n in rounds.items()))


def detail(values: list[int]) -> Detail:
    return Detail(1, (0,), None, None, True, rounds=tuple({"round": i + 1, "value": v} for i, v in enumerate(values)))


@pytest.mark.parametrize("seed", range(30))
def test_interrupted_readers_end_in_the_state_of_the_ledger(seed: int) -> None:
    rng = random.Random(seed)
    ledger, readers = Ledger(), [Reader() for _ in range(3)]
    rounds = {"a": 0, "b": 0}
    values: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(60):
        run = rng.choice(list(rounds))
        match rng.randrange(8):
            case 0:
                values[run] = values[run][: rng.randint(0, len(values[run]))]  # resumed from an earlier state
            case 1 if values[run]:
                values[run][rng.randrange(len(values[run]))] = rng.random()  # computed again
            case 2:
                rounds[rng.choice("cde")] = 0
            case 3 if rng.random() < 0.3 and len(rounds) > 2:
                rounds.pop(list(rounds)[-1])
            case 4:
                ledger.forget(run)  # nobody looked at it for a while
            case _:
                values[run] += [rng.random() for _ in range(rng.randint(1, 3))]
        for id in rounds:
            values.setdefault(id, [])
            rounds[id] = len(values[id])
        ledger.take(look(rounds), "", {id: detail(values[id]) for id in ("a", "b")})
        for reader in readers:
            if rng.random() < 0.4:
                reader.read(ledger, ["a", "b"])
    for reader in readers:
        reader.read(ledger, ["a", "b"])
        assert {id: run["rounds"] for id, run in reader.runs.items()} == rounds
        assert reader.head == ledger.head
        for id in ("a", "b"):
            assert [r["value"] for r in reader.rounds.get(id, [])] == values[id]


def test_nothing_new_is_no_event() -> None:
    ledger = Ledger()
    assert ledger.take(look({"a": 1, "b": 2}), "", {"a": detail([7])})
    reader = Reader()
    reader.read(ledger, ["a"])
    before = reader.events
    assert not ledger.take(look({"a": 1, "b": 2}), "", {"a": detail([7])})
    reader.read(ledger, ["a"])
    assert reader.events == before


def test_a_new_round_sends_one_run_and_one_round() -> None:
    ledger = Ledger()
    many = {f"run-{i}": 5 for i in range(700)}
    ledger.take(look(many), "", {"run-3": detail(list(range(5)))})
    known = ledger.cursor
    ledger.take(look({**many, "run-3": 6}), "", {"run-3": detail(list(range(6)))})
    (_, state), (_, rounds) = ledger.after(known, {"run-3": known})
    assert [run["id"] for run in state["runs"]] == ["run-3"]
    assert "anew" not in state
    assert rounds["start"] == 5
    assert len(rounds["rounds"]) == 1
    assert "head" not in rounds


def test_a_problem_leaves_what_was_read_last() -> None:
    ledger = Ledger()
    ledger.take(look({"a": 3}), "", {})
    known = ledger.cursor
    ledger.take(None, "it is gone", {})
    ((_, state),) = ledger.after(known, {})
    assert state["head"]["problem"] == "it is gone"
    assert state["head"]["progress"]["rounds"] == 3
    assert "runs" not in state


@pytest.mark.parametrize("text", ["", "-", "x", "a-", "a-x", "a-²", "a--1", "a-" + "9" * 40, None])
def test_text_that_is_not_a_cursor_means_that_nothing_is_known(text: str | None) -> None:
    assert Cursor.parse(text) is None
