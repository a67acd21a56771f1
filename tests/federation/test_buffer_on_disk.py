"""The buffer of an asynchronous federation on disk: restarts, damaged files, a full disk, several servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffered_updates import fill, update

import honestly as hn
from honestly.federation.folders import FolderInUseError
from honestly.federation.shelf import STATE

ROOT = Path(__file__).parents[2]


def test_it_continues_after_a_restart_with_the_same_bits(tmp_path: Path) -> None:
    memory = hn.Bayesian(memory=hn.Memory())
    whole, parts = hn.Buffer(6, memory, like=update(0)), tmp_path / "b"
    results: list[Any] = []
    for number in range(26):
        k, version = number % 11, max(whole.version - number % 2, 0)
        again = hn.Buffer(6, memory, folder=parts, like=update(0))  # a new server for each update
        assert again.clients == whole.clients
        one = whole.add(k, update(number), version=version)
        two = again.add(k, update(number), version=version)
        results.append(one)
        assert (one is None) == (two is None)
        if one is not None:
            assert all(np.array_equal(one.value[n], two.value[n]) for n in one.value)
            assert again.rule.memory == whole.rule.memory
        assert (again.version, again.clients) == (whole.version, whole.clients)
        del again
    assert sum(out is not None for out in results) >= 2


@pytest.mark.parametrize("rule", ["foolsgold", "fl_detector", "rodiloco"])
def test_a_rule_does_not_get_the_memory_of_another(rule: str, tmp_path: Path) -> None:
    buffer = hn.Buffer(3, hn.Bayesian(memory=hn.Memory()), folder=tmp_path)
    fill(buffer, range(3))
    del buffer
    buffer = hn.Buffer(3, rule, folder=tmp_path)
    assert buffer.version == 1
    assert buffer.rule.memory is None
    assert fill(buffer, range(3)) is not None


def test_the_folder_holds_no_more_than_what_waits_and_the_last_average(tmp_path: Path) -> None:
    buffer = hn.Buffer(3, "mean", folder=tmp_path)
    for _ in range(4):
        fill(buffer, range(3))
    fill(buffer, range(2))
    assert len(list(tmp_path.glob("update-*.safetensors"))) == 5
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("update-")) == [STATE]


def test_files_are_read_by_the_format_s_own_library(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    buffer = hn.Buffer(3, "mean", folder=tmp_path)
    buffer.add("a", update(1), version=0)
    (path,) = tmp_path.glob("update-*.safetensors")
    np.testing.assert_array_equal(load_file(path)["w"], update(1)["w"])


def test_an_average_whose_model_was_not_saved_is_repeated(tmp_path: Path) -> None:
    buffer = hn.Buffer(3, "mean", folder=tmp_path, like=update(0))
    fill(buffer, range(3))
    lost = fill(buffer, range(3, 6))
    buffer.add("early", update(7), version=2)
    del buffer
    again = hn.Buffer(3, "mean", folder=tmp_path, like=update(0), version=1)  # the model that was saved
    assert again.version == 1
    assert set(again.clients) == {"site-3", "site-4", "site-5"}  # "early" came from a version that is gone
    np.testing.assert_array_equal(again.aggregate().value["w"], lost.value["w"])
    del again
    with pytest.raises(ValueError, match=r"version=7, but the buffer in .* is at 2"):
        hn.Buffer(3, "mean", folder=tmp_path, version=7)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "huge header", "folder", "link", "metadata"])
def test_only_a_damaged_or_foreign_file_is_skipped(tmp_path: Path, damage: str) -> None:
    buffer = hn.Buffer(9, "mean", folder=tmp_path)
    fill(buffer, range(4))
    del buffer
    path = sorted(tmp_path.glob("update-*.safetensors"))[1]
    raw = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "flip":
        path.write_bytes(raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        path.write_bytes((len(b"{}      ")).to_bytes(8, "little") + b"{}      ")
    elif damage == "huge header":
        path.write_bytes((1 << 60).to_bytes(8, "little") + raw[8:])
    elif damage == "folder":
        path.mkdir()
    elif damage == "link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.write_bytes(raw.replace(b"site-1", b"site-9"))
    (tmp_path / "notes.txt").write_text("the operator's own")
    said: list[str] = []
    again = hn.Buffer(9, "mean", folder=tmp_path, log=lambda level, text: said.append(text))
    assert again.clients == ("site-0", "site-2", "site-3")
    assert any(path.name in text and "left out" in text for text in said)
    assert (tmp_path / "notes.txt").exists()
    again.add("site-1", update(1), version=0)
    assert len(again) == 4


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": {}, "sha256": ""}', "null"])
def test_a_damaged_state_loses_the_counts_but_no_update(tmp_path: Path, content: str) -> None:
    buffer = hn.Buffer(3, "mean", folder=tmp_path)
    fill(buffer, range(3))
    fill(buffer, range(2))
    del buffer
    (tmp_path / STATE).write_text(content)
    said: list[str] = []
    again = hn.Buffer(7, "mean", folder=tmp_path, log=lambda level, text: said.append(text))
    assert again.version == 1
    assert {"site-0", "site-1"} <= set(again.clients)
    assert any("damaged" in text for text in said)


def test_a_full_disk_refuses_the_update_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = hn.Buffer(3, "mean", folder=tmp_path)
    buffer.add("a", update(0), version=0)
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        buffer.add("b", update(1), version=0)
    assert buffer.clients == ("a",)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    monkeypatch.undo()
    buffer.add("b", update(1), version=0)
    del buffer
    assert hn.Buffer(3, "mean", folder=tmp_path).clients == ("a", "b")


def test_a_full_disk_during_averaging_loses_no_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    buffer = hn.Buffer(3, "mean", folder=tmp_path, log=lambda level, text: said.append(text))
    fill(buffer, range(2))
    monkeypatch.setattr("honestly.federation.shelf.Shelf.write_state", _full)
    out = buffer.add("site-2", update(2), version=0)
    assert out is not None
    assert any("could not be written" in text for text in said)
    monkeypatch.undo()
    del buffer
    again = hn.Buffer(3, "mean", folder=tmp_path, version=0)  # the updates of the average that was not written to disk
    assert len(again) == 3


def test_a_disk_that_was_full_for_a_while_keeps_no_more_than_the_last_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = hn.Buffer(3, "mean", folder=tmp_path)
    for full in (False, True, True, False):
        with monkeypatch.context() as patched:
            if full:
                patched.setattr("honestly.federation.shelf.Shelf.write_state", _full)
            fill(buffer, range(3))
    assert len(list(tmp_path.glob("update-*.safetensors"))) == 3
    del buffer
    assert len(hn.Buffer(3, "mean", folder=tmp_path, version=3)) == 3


def _full(*args: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_second_server_gets_an_error_that_the_folder_is_in_use(tmp_path: Path) -> None:
    buffer = hn.Buffer(3, "mean", folder=tmp_path)
    code = f"import honestly as hn; hn.Buffer(3, 'mean', folder={str(tmp_path)!r})"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=False)
    assert FolderInUseError.__name__ in run.stderr
    assert "use another folder for this one" in run.stderr
    del buffer
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_many_threads_lose_no_update_and_count_none_twice(tmp_path: Path) -> None:
    buffer = hn.Buffer(8, "mean", folder=tmp_path, history=tmp_path / "h")
    outs: list[hn.Aggregate] = []

    def work(k: int) -> None:
        for i in range(4):
            out = buffer.add(f"{k}-{i}", update(k), version=0)
            if out is not None:
                outs.append(out)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outs) == buffer.version == 4
    assert len({client for out in outs for client in out.clients}) == 32
    lines = (tmp_path / "h" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]
