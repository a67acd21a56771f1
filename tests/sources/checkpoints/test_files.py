"""Only regular files are read, by position, and a file that changed is noticed."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from full_disk import full

import honestly as hn
from honestly.sources.checkpoints import files, npz
from honestly.sources.checkpoints.files import File, Pool
from honestly.sources.tree import UnusableError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(100)))
    return path


def test_reads_by_position(path: Path) -> None:
    file = File(Pool(), str(path))
    out = np.zeros(4, np.uint8)
    file.fill(96, out)
    assert out.tolist() == [96, 97, 98, 99]
    assert file.bytes(3, 2) == bytes([3, 4])


def test_a_system_that_cannot_read_by_position_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(3))
    monkeypatch.delattr("os.preadv")
    with pytest.raises(OSError, match="use Linux, macOS or WSL"):
        hn.aggregate([tmp_path / "a.npz"], rule="mean")


def test_never_beyond_the_end(path: Path) -> None:
    file = File(Pool(), str(path))
    with pytest.raises(UnusableError, match="ends at byte 100"):
        file.fill(98, np.zeros(4, np.uint8))


@pytest.mark.parametrize("kind", ["fifo", "symlink", "folder", "device", "missing", "nul"])
def test_all_but_regular_files_are_refused(tmp_path: Path, path: Path, kind: str) -> None:
    target = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(target)  # nobody writes to it: opening it must not wait
    elif kind == "symlink":
        target.symlink_to(path)
    elif kind == "folder":
        target.mkdir()
    elif kind == "device":
        target = Path("/dev/zero")
    reason = {"fifo": "a FIFO", "symlink": "symbolic link", "folder": "a folder", "device": "a device"}
    with pytest.raises(UnusableError, match=reason.get(kind, "cannot be opened")):
        File(Pool(), str(target) if kind != "nul" else "a\0b")


def test_links_are_followed_if_allowed(tmp_path: Path, path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert File(Pool(), str(tmp_path / "link"), follow=True).size == 100


def test_permission_denied_is_a_reason(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:  # the tests may run as root, which may read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.os, "open", denied)
    with pytest.raises(UnusableError, match=r"'a.bin' cannot be opened: Permission denied"):
        File(Pool(), str(path))


@pytest.mark.parametrize("held", [256, 0])
def test_a_change_is_noticed(path: Path, held: int) -> None:
    file = File(Pool(keep_open=held, limit=0), str(path))
    assert file.change_reason() is None
    before = path.stat()
    path.write_bytes(bytes(100))  # as long as before, and its time is set back
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "changed during the run" in (file.change_reason() or "")


def test_replaced_by_another_file_while_it_was_closed(path: Path, tmp_path: Path) -> None:
    file = File(Pool(keep_open=0, limit=0), str(path))
    (tmp_path / "new").write_bytes(path.read_bytes())
    (tmp_path / "new").replace(path)
    with pytest.raises(UnusableError, match="changed during the run"):
        file.fill(0, np.zeros(4, np.uint8))


def descriptors() -> set[str]:
    """Regular files that this process has open."""
    opened = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            opened[link.name] = link.stat().st_mode
    return {name for name, mode in opened.items() if stat.S_ISREG(mode)}


def test_few_descriptors_serve_many_files(tmp_path: Path) -> None:
    pool = Pool(keep_open=3, limit=2)
    before = descriptors()
    opened = []
    for i in range(40):
        (tmp_path / str(i)).write_bytes(bytes([i]) * 8)
        opened.append(File(pool, str(tmp_path / str(i))))
    assert len(descriptors() - before) <= 3 + 2 + 1
    for i, file in enumerate(opened):
        assert file.bytes(0, 8) == bytes([i]) * 8
    pool.close()
    assert descriptors() <= before


@pytest.mark.parametrize("limit", [48, 256])
def test_few_descriptors_suffice_for_many_files(tmp_path: Path, limit: int) -> None:
    """Some systems allow a process only 256 open files; no client may be excluded because of that."""
    rng = np.random.default_rng(0)
    for k in range(300):
        np.savez(tmp_path / f"{k}.npz", w=rng.normal(size=4))
    for k in range(5):
        np.savez_compressed(tmp_path / f"packed-{k}.npz", **{f"t{i}": rng.normal(size=2) for i in range(80)})
    script = (
        "import resource, sys, pathlib\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "import honestly as hn\n"
        "for pattern in ('[0-9]*.npz', 'packed-*.npz'):\n"
        "    out = hn.aggregate(sorted(pathlib.Path(sys.argv[1]).glob(pattern)), 'mean')\n"
        "    assert not out.excluded, list(out.reasons.values())[:3]\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)


def test_a_full_disk_is_no_clients_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(3):
        np.savez_compressed(tmp_path / f"{k}.npz", w=np.arange(4.0) + k)
    monkeypatch.setattr(npz, "write_all", full)
    with pytest.raises(OSError, match="No space left on device while a compressed file was unpacked"):
        hn.aggregate(sorted(tmp_path.glob("*.npz")), "mean")


def test_a_damaged_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block asked for its values again, and each attempt took up more of the temporary file."""
    rng = np.random.default_rng(0)
    for k in range(5):
        np.savez_compressed(tmp_path / f"{k}.npz", w=rng.normal(size=400_000))
    content = bytearray((tmp_path / "4.npz").read_bytes())
    entry = content.rindex(b"PK\x01\x02")  # in the archive's directory; its checksum follows
    content[entry + 16 : entry + 20] = bytes(4)
    (tmp_path / "4.npz").write_bytes(content)
    rooms: list[int] = []
    room = Pool.room
    monkeypatch.setattr(Pool, "room", lambda pool, nbytes: (rooms.append(nbytes), room(pool, nbytes))[1])
    found = hn.aggregate(sorted(tmp_path.glob("*.npz")))
    assert "Bad CRC-32" in found.reasons[4]
    assert rooms == [3_200_000] * 5


def test_the_directory_of_an_archive_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read for every array: 3,000 arrays of three clients took two minutes."""
    for k in range(3):
        np.savez_compressed(tmp_path / f"{k}.npz", **{f"w{i}": np.full(3, 1.0 + k) for i in range(50)})
    opened: list[object] = []
    real = npz.zipfile.ZipFile
    monkeypatch.setattr(npz.zipfile, "ZipFile", lambda *args: (opened.append(args), real(*args))[1])
    found = hn.aggregate(sorted(tmp_path.glob("*.npz")), "mean")
    assert all((x == 2).all() for x in found.value.values())
    assert len(opened) <= 2 * 3  # for the first look, and to stay
