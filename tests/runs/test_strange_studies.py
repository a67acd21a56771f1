"""Archives and stores of strangers: nothing but a sound study is taken in."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest

from honestly.cli import main
from honestly.runs import transfer
from honestly.runs.export import archive, export
from honestly.runs.store import Store, StoreError
from honestly.runs.transfer import take_in


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
