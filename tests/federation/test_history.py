"""The files of a federation: nothing of an earlier one is lost, and no name keeps them from being written."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from honestly.federation import Referee, Reply, history
from honestly.federation.audit import audit
from honestly.federation.names import LONGEST
from honestly.rules import Bayesian
from honestly.rules.memory import Memory


def federation(folder: Path, rounds: int, name: str = "site") -> None:
    referee = Referee("mean", history=folder)
    for number in range(1, rounds + 1):
        referee.judge(number, [Reply(f"{name}-{k}", update={"w": np.full(3, float(k))}) for k in range(4)])


def test_the_files_of_an_earlier_federation_are_kept(tmp_path: Path) -> None:
    for rounds in (3, 2, 1):
        federation(tmp_path, rounds)
    lines = {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    assert lines == {
        "rounds-1.jsonl": 3, "rounds-1.csv": 1 + 3 * 4,
        "rounds-2.jsonl": 2, "rounds-2.csv": 1 + 2 * 4,
        "rounds.jsonl": 1, "rounds.csv": 1 + 4,
    }  # fmt: skip


def test_a_folder_without_rounds_is_not_changed(tmp_path: Path) -> None:
    federation(tmp_path, 2)
    Referee("mean", history=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rounds.csv", "rounds.jsonl"]


def test_the_umask_decides_who_may_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        federation(tmp_path, 1)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_name_that_is_not_valid_text_is_written(tmp_path: Path) -> None:
    federation(tmp_path, 2, name="half \ud800")
    assert [len(json.loads(line)["clients"]) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()] == [4, 4]
    assert "half \\ud800-3" in (tmp_path / "rounds.csv").read_text()


@pytest.mark.parametrize("ids", [np.arange(5), [uuid.UUID(int=k) for k in range(5)]], ids=["NumPy", "UUID"])
def test_ids_and_numbers_that_json_does_not_have_end_no_round(ids: Any, tmp_path: Path) -> None:
    referee = Referee(Bayesian(memory=Memory()), history=tmp_path)
    for number in np.arange(1, 3):
        referee.judge(number, [Reply(client, update={"w": np.full(3, 1.0 + k)}) for k, client in enumerate(ids)])
        referee.record_evaluation(number, {"accuracy": np.float32(0.5), "confusion": np.eye(2)})
    line = json.loads((tmp_path / "rounds.jsonl").read_text().splitlines()[-1])
    assert (line["round"], line["accuracy"], line["evaluation"]["confusion"]) == (2, 0.5, [[1.0, 0.0], [0.0, 1.0]])
    memory = Memory.from_dict(json.loads((tmp_path / "memory.json").read_text()))
    assert sorted(map(str, memory.records)) == sorted(map(str, ids))
    assert audit(tmp_path).sound


def test_text_from_clients_is_escaped(tmp_path: Path) -> None:
    log: list[str] = []
    referee = Referee("mean", history=tmp_path, log=lambda level, text: log.append(text))
    hostile = "x\x1b[2J\nround 1: all is well"
    fine = [Reply(f"site-{k}", update={"w": np.full(3, float(k))}) for k in range(4)]
    referee.judge(1, [*fine, Reply(hostile, fault=f"error 0: {hostile}")])
    referee.evaluation(1, [Reply(hostile, fault=hostile)])
    written = "".join(log) + (tmp_path / "rounds.csv").read_text().replace("\n", "")
    assert "x\\x1b[2J\\nround 1" in written
    assert all(character.isprintable() for character in written)
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 1 + 5


def test_every_line_names_the_run_and_the_chain_still_holds(tmp_path: Path) -> None:
    referee = Referee("mean", history=tmp_path, run="hospitals\x1b[2J, " + "spring " * 20)
    for number in (1, 2):
        referee.judge(number, [Reply(k, update=np.full(3, float(k))) for k in range(4)])
    names = [json.loads(line)["run"] for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert len(set(names)) == 1
    assert names[0].startswith("hospitals\\x1b[2J, spring")
    assert len(names[0]) == LONGEST
    assert audit(tmp_path).sound


def test_a_run_without_a_name_leaves_the_key_out(tmp_path: Path) -> None:
    federation(tmp_path, 1)
    assert "run" not in json.loads((tmp_path / "rounds.jsonl").read_text())
    with pytest.raises(ValueError, match="run is 7; expected a name"):
        Referee("mean", run=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="history is 5; expected a folder"):
        Referee("mean", history=5)  # type: ignore[arg-type]


def test_rows_of_earlier_rounds_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A federation of months must not spend its time on the rounds of the past."""
    made: list[int] = []
    rows = history._rows
    monkeypatch.setattr(history, "_rows", lambda record: made.append(record.number) or rows(record))
    federation(tmp_path, 30)
    assert made == list(range(1, 31))
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 1 + 30 * 4
