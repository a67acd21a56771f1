"""Runs of `honestly simulate` and histories of federations, while they are written."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from study_being_run import record

from honestly.federation.history import History
from honestly.federation.record import Round
from honestly.show.live.folders import FolderSource
from honestly.show.live.model import RunRow, Snapshot, SourceError
from honestly.show.live.source import open_source


def write(folder: Path, rounds: int, *, of: int = 10, tail: str = "", **settings: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    attack = {"name": "sign_flip", "gamma": 4.0}
    experiment = {"clients": 6, "rounds": of, "attack": attack, "malicious": 2, "rule": {"name": "bayesian"}}
    experiment |= settings
    described = {"id": "0" * 64, "experiment": experiment}
    (folder / "experiment.json").write_text(json.dumps(described))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record(t)) + "\n" for t in range(1, rounds + 1)) + tail)
    laps = [{"round": t, "images": 9, "train": 1.5, "evaluate": 0.5} for t in range(1, rounds + 1)]
    (folder / "seconds.jsonl").write_text("".join(json.dumps(lap) + "\n" for lap in laps))


def only(look: Snapshot) -> RunRow:
    (run,) = look.runs
    return run


def test_a_run_that_continues_and_ends(tmp_path: Path) -> None:
    write(tmp_path, 0)
    source = open_source(tmp_path)
    assert only(source.look()).status == "running"
    assert only(source.look()).rounds == 0
    write(tmp_path, 3)
    run = only(source.look())
    assert (run.status, run.rounds, run.of, run.seconds) == ("running", 3, 10, 2.0)
    assert run.cell["rule"] == "bayesian"
    assert run.cell["attack"] == "sign_flip"
    assert run.accuracy == pytest.approx(record(3)["accuracy"], abs=1e-4)
    found = source.detail(tmp_path.name)
    assert found is not None
    assert len(found.rounds) == 3
    assert source.detail("another") is None
    write(tmp_path, 10)
    assert only(source.look()).status == "done"


def test_runs_with_other_settings_of_a_rule_have_other_names(tmp_path: Path) -> None:
    write(tmp_path / "a", 3, rule={"name": "krum", "f": 1})
    write(tmp_path / "b", 3, rule={"name": "krum", "f": 2})
    write(tmp_path / "c", 3, rule={"name": "krum", "f": 2}, pre=[{"name": "nnm", "f": 2}])
    cells = [run.cell for run in open_source(tmp_path).look().runs]
    assert [cell["rule"] for cell in cells] == ["krum:f=1", "krum:f=2", "nnm+krum"]
    assert {cell["attack"] for cell in cells} == {"sign_flip"}


def test_a_run_without_news_is_stopped(tmp_path: Path) -> None:
    write(tmp_path, 3)
    long_ago = time.time() - 3600
    for name in ("rounds.jsonl", "experiment.json"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    assert only(FolderSource(tmp_path).look()).status == "stopped"


def test_half_a_line_is_not_read_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)
    write(tmp_path, 2, tail='{"round": 3, "accur')
    assert (only(source.look()).rounds, only(source.look()).error) == (2, "")
    write(tmp_path, 2, tail='{"round": 3, "accur\n{"round": 4}\n')
    assert only(source.look()).rounds == 2
    assert "damaged at line 3" in only(source.look()).error
    (tmp_path / "experiment.json").write_text("{")
    assert "experiment.json is damaged; rounds.jsonl is damaged" in only(source.look()).error
    write(tmp_path, 4)
    assert (only(source.look()).rounds, only(source.look()).error) == (4, "")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000, b"null\n3\n[]\n", b'{"accuracy": "high"}\n'])
def test_rubbish_in_the_files_raises_nothing(tmp_path: Path, content: bytes) -> None:
    for name in ("rounds.jsonl", "experiment.json", "seconds.jsonl"):
        (tmp_path / name).write_bytes(content)
    source = FolderSource(tmp_path)
    json.dumps([run.as_json() for run in source.look().runs], allow_nan=False)
    assert source.detail(tmp_path.name) is not None


def test_several_runs_in_a_folder(tmp_path: Path) -> None:
    for name, rounds in (("b", 1), ("a", 10)):
        write(tmp_path / name, rounds)
    (tmp_path / "notes").mkdir()
    source = open_source(tmp_path)
    look = source.look()
    assert look.kind == "folder"
    assert [(run.id, run.status) for run in look.runs] == [("a", "done"), ("b", "running")]
    write(tmp_path / "c", 0)
    assert [run.id for run in source.look().runs] == ["a", "b", "c"]
    shutil.rmtree(tmp_path / "b")
    assert [run.id for run in source.look().runs] == ["a", "c"]


def test_the_history_of_a_federation(tmp_path: Path) -> None:
    history = History(tmp_path)
    source = None
    for t in range(1, 4):
        clients = tuple(f"site-{k}" for k in range(t + 1))  # sites join: all rounds before get longer rows
        honesty = dict.fromkeys(clients, 0.9) | {"site-0": 0.2}
        history.add(Round(t, clients, dict(honesty), None, {}, False, "fine", False, {"accuracy": 0.2 * t}))
        history.write()
        source = source or open_source(tmp_path)
        run = only(source.look())
        assert (run.rounds, run.of, run.status) == (t, None, "running")
        found = source.detail(tmp_path.name)
        assert found is not None
        assert found.names == clients
        assert {len(r["belief"]) for r in found.rounds} == {t + 1}
        assert found.rounds[-1]["accused"] == [0]
    assert run.accuracy == pytest.approx(0.6)


def test_a_federation_is_named_by_its_run(tmp_path: Path) -> None:
    history = History(tmp_path)
    for t, name in ((1, ""), (2, "hospitals, spring")):
        history.run = name
        history.add(Round(t, ("a", "b"), None, None, {}, False, "fine", False))
        history.write()
        look = open_source(tmp_path).look()
        assert look.name == (name or tmp_path.name)
        assert only(look).cell == {"run": name or tmp_path.name}


def test_a_folder_that_vanishes_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, 1)
    source = open_source(folder)
    source.look()
    shutil.rmtree(folder)
    with pytest.raises(SourceError, match="removed"):
        source.look()
    with pytest.raises(SourceError, match="not there yet"):
        open_source(folder)
    folder.mkdir()
    with pytest.raises(SourceError, match="empty so far"):
        open_source(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="is a file"):
        open_source(tmp_path / "file")
