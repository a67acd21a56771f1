"""Every kind of hostile file excludes only its own client, by name, and changes nothing for the others."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiler import needs_compiler
from safetensors.numpy import load_file, save_file

import honestly as hn
from honestly.engine.passes import compiled, host
from honestly.sources.checkpoints import Checkpoints, checkpoint

from .conftest import shard

BAD = 2  # the client that lies


@pytest.fixture
def good(clients: Callable[..., list[Path]]) -> list[Path]:
    return clients(K=6)


def check(paths: list[Path], reason: str, rule: str = "bayesian") -> None:
    """The client is named with that reason, and the result is what the others give by themselves."""
    found = hn.aggregate(paths, rule)
    assert list(found.reasons) == [BAD]
    assert reason in found.reasons[BAD]
    assert found.weights is not None
    assert found.weights[BAD] == 0
    alone = hn.aggregate([path for k, path in enumerate(paths) if k != BAD], rule)
    for name, values in alone.value.items():
        np.testing.assert_allclose(found.value[name], values, rtol=1e-5, atol=1e-6)


def _header(path: Path, edit: Callable[[dict], None]) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def test_truncated(good: list[Path]) -> None:
    good[BAD].write_bytes(good[BAD].read_bytes()[:-5])
    check(good, "outside of 0 to")


def test_empty(good: list[Path]) -> None:
    good[BAD].write_bytes(b"")
    check(good, "too few for a safetensors file")


def test_overlapping(good: list[Path]) -> None:
    def edit(header: dict) -> None:
        header["copy"] = header["embed.weight"]

    _header(good[BAD], edit)
    check(good, "overlaps")


def test_wrong_dtype(good: list[Path]) -> None:
    def edit(header: dict) -> None:
        header["layer.0.bias"]["dtype"] = "I32"

    _header(good[BAD], edit)
    check(good, "tensor 'layer.0.bias' holds integer values, expected float")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("rule", ["bayesian", "mean"])
def test_values_that_cannot_be_averaged(good: list[Path], value: float, rule: str) -> None:
    tensors = load_file(good[BAD])
    tensors["layer.0.weight"][3, 4] = value
    save_file(tensors, good[BAD])
    check(good, "tensor 'layer.0.weight' at flat index 97 is", rule)


@pytest.mark.parametrize("kind", ["fifo", "symlink", "missing", "folder", "socket name"])
def test_not_a_file(good: list[Path], kind: str) -> None:
    good[BAD].unlink()
    if kind == "fifo":
        os.mkfifo(good[BAD])
    elif kind == "symlink":
        good[BAD].symlink_to(good[0])
    elif kind == "folder":
        good[BAD].mkdir()
    reasons = {"fifo": "is a FIFO", "symlink": "symbolic link", "folder": "its folder holds neither"}
    check(good, reasons.get(kind, "cannot be opened"))


@pytest.mark.parametrize(
    "filename", ["../client-0.safetensors", "/etc/passwd", ".hidden.safetensors", "a\n.safetensors", 7, "x.pt"]
)
def test_an_index_that_leaves_its_folder(tmp_path: Path, good: list[Path], filename: str) -> None:
    good[BAD] = shard(tmp_path / "sharded", load_file(good[BAD]), 2)
    index = good[BAD] / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["scale"] = filename
    index.write_text(json.dumps(content))
    check(good, "expected a .safetensors file beside it")


def test_an_index_that_lies(tmp_path: Path, good: list[Path]) -> None:
    good[BAD] = shard(tmp_path / "sharded", load_file(good[BAD]), 2)
    index = good[BAD] / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["more"] = content["weight_map"]["scale"]
    index.write_text(json.dumps(content))
    check(good, "tensor 'more' is not in")
    index.write_text("[]")
    check(good, "not a JSON object")
    index.write_text('{"weight_map": {}}')
    check(good, "no weight_map")


def test_shards_with_endless_headers(tmp_path: Path, good: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of shards may be hard links to one file, whose long header took seconds each."""
    good[BAD] = shard(tmp_path / "sharded", load_file(good[BAD]), 2)
    monkeypatch.setattr(checkpoint, "MOST_HEADERS", 200)
    check(good, "its shards have headers of more than 200 bytes together")


def test_a_shard_that_is_a_link(tmp_path: Path, good: list[Path]) -> None:
    good[BAD] = shard(tmp_path / "sharded", load_file(good[BAD]), 2)
    target = good[BAD] / "model-00002-of-00002.safetensors"
    target.rename(tmp_path / "elsewhere.safetensors")
    target.symlink_to(tmp_path / "elsewhere.safetensors")
    check(good, "symbolic link")
    assert not hn.aggregate(Checkpoints(good, follow_symlinks=True), "mean").excluded


@pytest.mark.parametrize("rule", ["bayesian", "median"])
@pytest.mark.parametrize("change", ["truncated", "rewritten", "poisoned"])
@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=needs_compiler)])
def test_a_file_that_changes_during_the_run(
    good: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rule: str, change: str, when: int, compiles: bool
) -> None:
    """In the first or the second pass, the file is cut, written again, or its weights are replaced by poison."""
    alone = hn.aggregate([path for k, path in enumerate(good) if k != BAD], rule)
    content = good[BAD].read_bytes()
    passes = 0

    def changing(before: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: host.HostPasses, *args: Any) -> Any:
            nonlocal passes
            passes += 1
            if passes == when or (rule == "median" and passes == 1):
                if change == "truncated":
                    os.truncate(good[BAD], len(content) // 2)
                elif change == "rewritten":
                    good[BAD].write_bytes(content)
                else:
                    good[BAD].write_bytes(content[:-4000] + np.full(1000, 50, np.float32).tobytes())
            return before(self, *args)

        return changed

    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0 if compiles else 1 << 60)
    for name in ("gram", "mix", "reduce"):
        monkeypatch.setattr(host.HostPasses, name, changing(getattr(host.HostPasses, name)))
    found = hn.aggregate(good, rule, out=tmp_path / "out.safetensors")
    assert list(found.reasons) == [BAD]
    assert "changed" in found.reasons[BAD] or "cut short" in found.reasons[BAD]
    written = load_file(found.value)
    for name, values in alone.value.items():
        np.testing.assert_allclose(written[name], values, rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_no_majority_is_refused_with_every_reason(good: list[Path], tmp_path: Path) -> None:
    for k in (0, 1, 2):
        good[k].write_bytes(b"nonsense" * 9)
    with pytest.raises(hn.AggregationError, match="only 3 of 6 clients can be used") as caught:
        hn.aggregate(good, "mean", out=tmp_path / "out.safetensors")
    assert sorted(caught.value.reasons) == [0, 1, 2]
    assert not (tmp_path / "out.safetensors").exists()


def test_all_unreadable(tmp_path: Path) -> None:
    with pytest.raises(hn.AggregationError, match="none of the 3 clients can be used"):
        hn.aggregate([str(tmp_path / f"{k}") for k in range(3)], "mean")


def test_names_that_a_terminal_would_act_on_are_escaped(good: list[Path]) -> None:
    tensors = load_file(good[BAD])
    tensors["\x1b[31mred\x07"] = np.zeros(3)
    save_file(tensors, good[BAD])
    found = hn.aggregate(good, "mean")
    assert found.reasons[BAD].isprintable()


def _pack(path: Path, compressed: str) -> None:
    """Write a PyTorch file again, with one of its records compressed."""
    with zipfile.ZipFile(path) as content:
        records = [(info.filename, content.read(info)) for info in content.infolist()]
    with zipfile.ZipFile(path, "w") as content:
        for name, data in records:
            content.writestr(name, data, zipfile.ZIP_DEFLATED if name.endswith(compressed) else zipfile.ZIP_STORED)


def _move_directory(path: Path) -> None:
    """Let the records at the end say that the directory begins a byte earlier; some readers correct that themselves."""
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x06\x06") + 48
    content[at : at + 8] = struct.pack("<Q", struct.unpack("<Q", content[at : at + 8])[0] - 1)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: _pack(path, "data/0"), "is compressed"),
        (lambda path: _pack(path, "data.pkl"), "is compressed"),
        (_move_directory, "does not end as files of torch.save do"),
    ],
)
def test_archives_that_torch_would_unpack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], reason: str
) -> None:
    """A file of a megabyte may unpack to gigabytes, so torch never sees it."""
    paths = [tmp_path / f"{k}.pt" for k in range(5)]
    for k, path in enumerate(paths):
        torch.save({"w": torch.arange(1000.0) + k}, path, _use_new_zipfile_serialization=k != 4)
    spoil(paths[BAD])
    opened: list[str] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda path, **options: opened.append(str(path)) or load(path, **options))
    found = hn.aggregate(Checkpoints(paths, allow_torch=True), "mean")
    assert list(found.reasons) == [BAD]
    assert reason in found.reasons[BAD]
    assert {str(path) for path in paths} - set(opened) == {str(paths[BAD])}
