"""The files of a federation: nothing of an earlier one is lost, and no name keeps them from being written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from honestly.federation import Referee, Reply
from honestly.federation.audit import audit
from honestly.federation.names import LONGEST


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


def test_a_name_that_is_not_valid_text_is_written(tmp_path: Path) -> None:
    federation(tmp_path, 2, name="half \ud800")
    assert [len(json.loads(line)["clients"]) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()] == [4, 4]
    assert "half \\ud800-3" in (tmp_path / "rounds.csv").read_text()


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
