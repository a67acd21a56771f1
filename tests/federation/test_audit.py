"""Verification finds where a history was changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from full_disk import full

from honestly.cli import main
from honestly.federation import Referee, Reply
from honestly.federation.audit import audit, seal
from honestly.runs.reader import read_rounds


def federation(folder: Path, rounds: int, *, newcomers: bool = False, rule: str = "mean") -> None:
    referee = Referee(rule, history=folder)
    for number in range(1, rounds + 1):
        clients = range(4 + (number if newcomers else 0))
        referee.judge(number, [Reply(f"site-{k}", update={"w": np.full(3, float(k))}) for k in clients])
        referee.record_evaluation(number, {"accuracy": number / 10})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    federation(tmp_path, 6, newcomers=True)
    return tmp_path


def lines_of(folder: Path) -> list[str]:
    return (folder / "rounds.jsonl").read_text().splitlines()


def put(folder: Path, lines: list[str]) -> None:
    (folder / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))


def test_an_untouched_history_is_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(folder).sound
    assert main(["audit", str(folder)]) == 0
    said = capsys.readouterr().out
    head = json.loads(lines_of(folder)[-1])["hash"]
    assert said.startswith("sound: 6 rounds\n")
    assert f"head: {head}" in said
    assert "cannot show that its last lines were removed" in said
    assert main(["audit", str(folder / "rounds.jsonl"), "--head", head, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "sound": True, "problem": "", "files": ["rounds.jsonl"], "rounds": 6, "head": head,
    }  # fmt: skip


def test_a_hash_is_final_once_another_round_follows(tmp_path: Path) -> None:
    referee = Referee("mean", history=tmp_path)
    seen: list[str] = []
    for number in range(1, 6):
        clients = range(3 + number)  # newcomers must not change the lines of the past
        referee.judge(number, [Reply(k, update={"w": np.full(3, float(k))}) for k in clients])
        referee.record_evaluation(number, {"accuracy": 0.5})
        seen.append(json.loads(lines_of(tmp_path)[-1])["hash"])
    assert audit(tmp_path).heads == seen


def test_newcomers_have_their_place_in_the_report(tmp_path: Path) -> None:
    folder = tmp_path
    federation(folder, 6, newcomers=True, rule="bayesian")
    found = read_rounds(folder / "rounds.jsonl")
    assert len(found.clients) == 10
    assert {len(record.weights or ()) for record in found.records} == {10}
    assert list(found.records[0].weights or ())[5:] == [None] * 5
    assert main(["report", str(folder), "--out", str(folder / "report"), "--quiet"]) == 0
    pages = "".join(page.read_text() for page in (folder / "report").rglob("*.html"))
    assert "site-9" in pages


@pytest.mark.parametrize("line", range(6))
def test_a_changed_line_is_named(folder: Path, line: int) -> None:
    lines = lines_of(folder)
    lines[line] = lines[line].replace('"kept": false', '"kept": true ')
    put(folder, lines)
    assert audit(folder).broken == (f"rounds.jsonl, line {line + 1}: was changed: its hash does not match")


def test_a_line_changed_with_a_new_hash_breaks_the_next_one(folder: Path) -> None:
    lines = lines_of(folder)
    record = json.loads(lines[2])
    previous = record.pop("previous")
    del record["hash"]
    lines[2], _ = seal({**record, "status": "all is well"}, previous)
    put(folder, lines)
    assert audit(folder).broken.startswith("rounds.jsonl, line 4: follows a line that is not here")


def test_removed_inserted_and_moved_lines_are_distinguished(folder: Path) -> None:
    lines = lines_of(folder)
    put(folder, lines[:2] + lines[3:])
    assert audit(folder).broken.startswith("rounds.jsonl, line 3: follows a line that is not here: a line before it")
    put(folder, lines[1:])
    assert audit(folder).broken.startswith("rounds.jsonl, line 1: follows a line that is not here: a file before")
    put(folder, [*lines[:4], lines[1], *lines[4:]])
    assert audit(folder).broken.startswith("rounds.jsonl, line 5: follows line 1 of the chain")
    put(folder, [*lines[:2], lines[3], lines[2], *lines[4:]])
    assert audit(folder).broken.startswith("rounds.jsonl, line 3: follows line 4, which comes later")
    put(folder, [*lines[:3], seal({"round": 9}, "0" * 64)[0], *lines[3:]])
    assert audit(folder).broken.startswith("rounds.jsonl, line 4: begins a chain of its own")
    put(folder, [*lines[:3], '{"round": 9}', *lines[3:]])
    assert audit(folder).broken == "rounds.jsonl, line 4: has no hash, though earlier lines do"


def test_a_file_that_was_cut_short_is_named(folder: Path) -> None:
    path = folder / "rounds.jsonl"
    raw = path.read_bytes()
    path.write_bytes(raw[:-40])
    assert audit(folder).broken == "rounds.jsonl, line 6: is not a complete JSON object"
    path.write_bytes(raw[:-1])
    assert "line 6: has no newline" in audit(folder).broken


def test_only_a_head_that_was_kept_elsewhere_shows_a_cut_tail(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(folder)
    early, late = (json.loads(lines[i])["hash"] for i in (1, 5))
    put(folder, lines[:4])
    assert main(["audit", str(folder)]) == 0
    assert main(["audit", str(folder), "--head", early]) == 0
    assert main(["audit", str(folder), "--head", late]) == 1
    assert "lines were removed" in capsys.readouterr().err


def test_the_chain_continues_after_restarts(tmp_path: Path) -> None:
    for rounds in (2, 3, 1):
        federation(tmp_path, rounds)
    found = audit(tmp_path)
    assert found.sound
    assert found.files == ["rounds-1.jsonl", "rounds-2.jsonl", "rounds.jsonl"]
    assert found.rounds == 6
    (tmp_path / "rounds-2.jsonl").unlink()
    assert audit(tmp_path).broken.startswith("rounds.jsonl, line 1: follows a line that is not here: a file before")


def test_one_file_of_a_history_with_restarts_asks_for_the_folder(tmp_path: Path) -> None:
    """It was called changed: "a file before this one was removed or replaced"."""
    for _ in range(2):
        federation(tmp_path, 2)
    found = audit(tmp_path / "rounds.jsonl")
    assert found.broken == (
        "rounds.jsonl, line 1: follows a line of an earlier file, as after a restart: audit the folder that holds both"
    )
    assert audit(tmp_path / "rounds-1.jsonl").sound
    (tmp_path / "rounds-1.jsonl").unlink()
    assert "was removed or replaced" in audit(tmp_path).broken


def test_the_chain_continues_after_a_server_that_could_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr("honestly.federation.history.write_atomically", full)
        federation(tmp_path, 2)
    assert not (tmp_path / "rounds.jsonl").exists()
    federation(tmp_path, 2)
    found = audit(tmp_path)
    assert found.broken == ""
    assert (found.files, found.rounds) == (["rounds-1.jsonl", "rounds.jsonl"], 4)


def test_old_histories_stay_readable_and_cannot_be_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = '{"round": 1, "clients": ["a", "b"], "honesty": [1.0, 0.1], "accused": ["b"]}\n'
    (tmp_path / "rounds.jsonl").write_text(old)
    assert read_rounds(tmp_path / "rounds.jsonl").records[0].accused == [1]
    assert main(["audit", str(tmp_path)]) == 1
    assert "1 of 1 lines have no hash (a simulation or an older version wrote them;" in capsys.readouterr().err
    federation(tmp_path, 2)  # a new chain begins after the old file
    found = audit(tmp_path)
    assert (found.broken, found.unsealed, len(found.heads)) == ("", 1, 2)


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[]\n", b"null\n", b"{" * 5000 + b"\n", b'{"hash": 3}\n', b"\n\n"])
def test_garbage_is_named_and_never_raises(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rounds.jsonl").write_bytes(content)
    assert audit(tmp_path).broken.startswith("rounds.jsonl, line 1: ")


def test_nothing_to_verify_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(tmp_path)]) == 1
    assert "nothing to verify" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "nowhere")]) == 1
    with pytest.raises(SystemExit):
        main(["audit", str(tmp_path), "--head", "xyz"])


def test_a_file_that_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rounds-1.jsonl").mkdir()
    assert main(["audit", str(folder)]) == 1
    assert "not sound: rounds-1.jsonl cannot be read: Is a directory" in capsys.readouterr().err


def test_a_pipe_in_place_of_a_file_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "rounds-1.jsonl")
    assert audit(folder).broken == "rounds-1.jsonl cannot be read: not a regular file"
