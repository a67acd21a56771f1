"""The output is either the old one or the new one, never partial, and other files in the folder are kept."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from full_disk import full
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import honestly as hn
from honestly.sources.checkpoints import replace, writer

from .conftest import model, shard

Clients = Callable[..., list[Path]]


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if ".tmp" in path.name or ".old" in path.name]


def test_aligned_with_metadata_like_the_inputs(clients: Clients, tmp_path: Path) -> None:
    out = hn.aggregate(clients(), "mean", out=tmp_path / "out.safetensors").value
    with safe_open(out, "numpy") as opened:
        assert opened.metadata() == {"format": "pt", "honestly": "average of clients"}
    length = int.from_bytes(out.read_bytes()[:8], "little")
    header = json.loads(out.read_bytes()[8 : 8 + length])
    assert length % 8 == 0
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % {"F32": 4, "I64": 8}[entry["dtype"]] == 0


def test_an_error_in_the_second_pass_leaves_the_old_file(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"old")
    paths = clients()

    monkeypatch.setattr(replace.os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        hn.aggregate(paths, "mean", out=out)
    assert out.read_bytes() == b"old"
    assert left_over(tmp_path) == []


def test_a_full_disk_is_found_before_the_second_pass(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replace.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        hn.aggregate(clients(), "mean", out=tmp_path / "out")
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("name", ["out.safetensors", "out.npz", "out"])
def test_a_folder_that_may_be_written_but_not_read(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The output was there, and the error said that it was unchanged."""

    def refuse(path: Path) -> None:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(writer, "sync_folder", refuse)
    assert hn.aggregate(clients(), "mean", out=tmp_path / name).value.exists()


@pytest.mark.parametrize("name", ["out.safetensors", "out.npz", "out"])
def test_what_a_killed_run_left_is_removed(clients: Clients, tmp_path: Path, name: str) -> None:
    """Each kill left a hidden file as large as the model, until the disk was full."""
    paths = clients()
    folder = Path(name).suffix == ""
    living = replace.Draft(tmp_path / name, folder=folder)
    (tmp_path / f".{name}.0123abcd.zip.tmp").touch()
    (tmp_path / f".{name}.0123abcd.tmp").mkdir() if folder else (tmp_path / f".{name}.0123abcd.tmp").touch()
    others = [
        tmp_path / f".other{name}.0123abcd.tmp",
        tmp_path / f".{name}.mine.tmp",
        tmp_path / f".{name}.89abcdef.tmp",
    ]
    for other in others[:2]:
        other.touch()
    others[2].symlink_to("nowhere")
    hn.aggregate(paths, "mean", out=tmp_path / name)
    assert {tmp_path / file for file in left_over(tmp_path)} == {living.path, *others}
    living.release()
    hn.aggregate(paths, "mean", out=tmp_path / name)
    assert {tmp_path / file for file in left_over(tmp_path)} == set(others)


def test_a_draft_that_was_taken_for_an_old_one_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    lock = replace._lock

    def taken(fd: int, *, sure: bool = False) -> bool:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        return lock(fd, sure=sure)

    monkeypatch.setattr(replace, "_lock", taken)
    draft = replace.Draft(tmp_path / "out.npz", folder=False)
    assert [*tmp_path.iterdir()] == [draft.path] != swept
    draft.release()


def test_a_system_that_cannot_reserve_space(clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(replace.os, "posix_fallocate", cannot)
    assert hn.aggregate(clients(), "mean", out=tmp_path / "out.safetensors").value.exists()


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    tensors = model(np.random.default_rng(0))
    paths = [shard(tmp_path / f"client-{k}", tensors, 2) for k in range(3)]
    out = shard(tmp_path / "out", tensors, 5)  # an older output with more shards
    if not exchange:
        monkeypatch.setattr(replace, "_exchange", lambda one, other: False)
    assert hn.aggregate(paths, "mean", out=out).value == out
    assert len(list(out.iterdir())) == 3
    assert left_over(tmp_path) == []


def test_few_descriptors_suffice_for_many_shards(tmp_path: Path) -> None:
    """Where clients shard differently, the first one's layout is used, however many files it has."""
    tensors = {f"t{i}": np.full(2, float(i)) for i in range(100)}
    for k, pieces in enumerate((100, 3, 2)):
        shard(tmp_path / f"client-{k}", tensors, pieces)
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "import honestly as hn\n"
        "hn.aggregate([f'client-{k}' for k in range(3)], 'mean', out='out', explain=True)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 100
    value = hn.aggregate([tmp_path / "out"], "mean").value
    assert all(np.allclose(value[name], x) for name, x in tensors.items())


def test_shards_of_which_one_has_the_name_of_a_lone_file_get_an_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"client-{k}" for k in range(3)]
    for path in paths:
        path.mkdir()
        files = {"a": "model.safetensors", "b": "vision.safetensors"}
        for name, file in files.items():
            save_file({name: rng.normal(size=5)}, path / file)
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    out = hn.aggregate(paths, "mean", out=tmp_path / "out").value
    assert {path.name for path in out.iterdir()} == {path.name for path in paths[0].iterdir()}
    assert set(hn.aggregate([out, out, out], "mean").value) == {"a", "b"}


def test_a_folder_with_other_files_is_not_touched(clients: Clients, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match=r"also holds 'thesis.tex'"):
        hn.aggregate(clients(), "mean", out=out)
    assert (out / "thesis.tex").read_text() == "years"


def test_a_folder_with_several_models_is_not_touched(clients: Clients, tmp_path: Path) -> None:
    paths, out = clients(), tmp_path / "history"
    out.mkdir()
    for number in (1, 2):
        (out / f"round-{number}.safetensors").write_bytes(paths[0].read_bytes())
    for index in (None, "{", '{"weight_map": {"a": "round-1.safetensors"}}'):
        if index is not None:
            (out / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ValueError, match=r"several models \('round-1.safetensors', 'round-2.safetensors'\)"):
            hn.aggregate(paths, "mean", out=out)
    assert len(list(out.iterdir())) == 3


def test_a_folder_that_is_write_protected_is_not_touched(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was replaced, and left behind under a hidden name because its files could not be removed."""
    out = tmp_path / "out"
    out.mkdir()
    access = os.access
    monkeypatch.setattr(replace.os, "access", lambda path, mode: path != out and access(path, mode))  # root may all
    with pytest.raises(ValueError, match="a folder that cannot be written"):
        hn.aggregate(clients(), "mean", out=out)


@pytest.mark.parametrize("target", ["old", "missing"])
def test_a_link_to_a_folder_is_followed(clients: Clients, tmp_path: Path, target: str) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "out").symlink_to(target)
    hn.aggregate(clients(), "mean", out=tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert [path.name for path in (tmp_path / target).iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("out", [".", "/"])
def test_a_folder_that_cannot_be_renamed_is_refused_before_the_work(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match=r"cannot be replaced by another folder|cannot be written"):
        hn.aggregate(clients(), "mean", out=out)


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("no/such/out.safetensors", "does not exist"),
        ("out.pt", "results are written as .safetensors"),
        ("folder.safetensors", "is a folder"),
        ("file", "without a known ending"),
    ],
)
def test_outputs_that_cannot_be(clients: Clients, tmp_path: Path, out: str, reason: str) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=reason):
        hn.aggregate(clients(), "mean", out=tmp_path / out)


def test_the_output_may_be_the_reference(clients: Clients, tmp_path: Path) -> None:
    paths = clients()
    out = tmp_path / "global.safetensors"
    out.write_bytes(paths[0].read_bytes())
    found = hn.aggregate(paths, "mean", reference=out, out=out)
    np.testing.assert_allclose(load_file(out)["scale"], hn.aggregate(paths, "mean").value["scale"], rtol=1e-6)
    assert not found.excluded


SLOW = """
import sys, time
from honestly.sources.checkpoints.writer import FileSink
put = FileSink.put
def slow(self, *args):
    put(self, *args)
    print("writing", flush=True)
    time.sleep(60)
FileSink.put = slow
import honestly as hn
hn.aggregate(sys.argv[2:], "mean", out=sys.argv[1])
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("old", [True, False])
def test_a_kill_leaves_the_old_file(clients: Clients, tmp_path: Path, how: int, old: bool) -> None:
    paths, out = clients(), tmp_path / "out.safetensors"
    if old:
        out.write_bytes(b"old")
    command = [sys.executable, "-c", SLOW.replace("sleep(60)", "sleep(2)"), str(out), *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        time.sleep(0.05)
        process.send_signal(how)
        process.wait(30)
        assert process.returncode != 0
    assert out.exists() == old
    if old:
        assert out.read_bytes() == b"old"
    if how == signal.SIGINT:
        assert left_over(tmp_path) == []


def test_every_value_is_written_whatever_the_blocks(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from honestly.engine.passes import host

    paths = clients()
    expected = hn.aggregate(paths, "median").value
    monkeypatch.setattr(host, "BLOCK", 7 * 2 * 64)
    found = load_file(hn.aggregate(paths, "median", out=tmp_path / "out.safetensors").value)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_a_name_that_safetensors_cannot_hold(tmp_path: Path) -> None:
    """The file would be one that no reader takes."""
    paths = [tmp_path / f"{k}.npz" for k in range(3)]
    for k, path in enumerate(paths):
        np.savez(path, __metadata__=np.arange(3.0) + k)
    for out in ("out.safetensors", "folder"):
        with pytest.raises(ValueError, match="'__metadata__' has a name"):
            hn.aggregate(paths, "mean", out=tmp_path / out)
    hn.aggregate(paths, "mean", out=tmp_path / "out.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.npz", "1.npz", "2.npz", "out.npz"]
    assert np.load(tmp_path / "out.npz")["__metadata__"].tolist() == [1, 2, 3]
