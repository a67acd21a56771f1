"""Data sets in their usual layouts, and errors for missing ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from honestly.cli import main
from honestly.sim.data import DATASETS, load, prepare
from honestly.sim.data import download as downloads
from honestly.sim.data.download import DownloadError, RemoteFile
from honestly.sim.data.files import IDX, SETS, find, home, load_arrays


def file_of(path: Path) -> RemoteFile:
    return RemoteFile(path.stat().st_size, hashlib.md5(path.read_bytes()).hexdigest())


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, *, zipped: bool, n: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    arrays = {}
    for name in IDX:
        shape = (n, 28, 28) if "images" in name else (n,)
        arrays[name] = rng.integers(0, 10, shape, dtype=np.uint8)
        raw = idx(arrays[name])
        (folder / (name + ".gz" if zipped else name)).write_bytes(gzip.compress(raw) if zipped else raw)
    return arrays


def write_cifar(folder: Path, n: int = 4) -> np.ndarray:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        content = {b"data": data, b"labels": list(range(n)), b"batch_label": b"x"}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return data


def test_digits_come_with_the_package_and_are_small() -> None:
    data = load("digits")
    assert data.images.shape == (1438, 1, 8, 8)
    assert data.test_images.shape == (359, 1, 8, 8)
    assert sorted(np.unique(data.test_labels)) == list(range(10))
    assert data.images.max() == 255
    place = DATASETS["digits"].find(None)
    assert place is not None
    assert place.stat().st_size < 100_000


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fmnist", "FashionMNIST/raw")])
def test_idx_files_zipped_or_not(tmp_path: Path, name: str, folder: str, zipped: bool) -> None:
    arrays = write_idx(tmp_path / folder, zipped=zipped)
    data = load(name, tmp_path, download=False)
    assert np.array_equal(data.images[:, 0], arrays[IDX[0]])
    assert np.array_equal(data.test_labels, arrays[IDX[3]])
    assert data.labels.dtype == np.int64


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "MNIST" / "raw", zipped=False)
    monkeypatch.setenv("HONESTLY_DATA", str(tmp_path))
    assert home() == tmp_path
    assert len(load("mnist", download=False).labels) == 12
    assert find("fmnist") is None  # MNIST's files have the same names and must not be taken for it


def test_without_a_home_folder_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HONESTLY_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    for words in ([], ["--data", "~nobody-of-this-name/data"]):
        assert main(["datasets", *words]) == 1
        assert "name a folder for data sets with --data or HONESTLY_DATA" in capsys.readouterr().err
    assert home(tmp_path) == tmp_path


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST" / "raw", zipped=False)
    file = tmp_path / "MNIST" / "raw" / IDX[0]
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match=f"{IDX[0]} is damaged"):
        load("mnist", tmp_path)


def test_cifar_batches(tmp_path: Path) -> None:
    data = write_cifar(tmp_path / "cifar-10-batches-py")
    found = load("cifar10", tmp_path, download=False)
    assert found.images.shape == (20, 3, 32, 32)
    assert np.array_equal(found.images[:4].reshape(4, -1), data)
    assert found.flip


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({b"data": Harm()}))
    with pytest.raises(ValueError, match=r"data_batch_3 .*system"):
        load("cifar10", tmp_path, download=False)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({b"data": np.zeros((4, 3072), np.float32), b"labels": [0] * 4}, "images float32"),
        ({b"data": np.zeros((3, 3072), np.uint8), b"labels": [0] * 4}, r"4 labels, but images uint8 \(3, 3072\)"),
        ({b"data": np.zeros((4, 1024), np.uint8), b"labels": [0] * 4}, r"images uint8 \(4, 1024\)"),
        ({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, 10]}, "labels from 0 to 10"),
        ({b"pixels": 3}, "KeyError: b'data'"),
        (b"not a pickle", "delete it and run again"),
        ([1], "delete it and run again"),
    ],
)
def test_a_damaged_batch_is_refused_by_name(tmp_path: Path, content: object, complaint: str) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py")
    raw = content if isinstance(content, bytes) else pickle.dumps(content)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").write_bytes(raw)
    with pytest.raises(ValueError, match=f"data_batch_4 is damaged or not a CIFAR-10 file .*{complaint}"):
        load("cifar10", tmp_path, download=False)


def test_a_batch_cut_short_or_missing(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py")
    file = tmp_path / "cifar-10-batches-py" / "test_batch"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match="test_batch is damaged"):
        load("cifar10", tmp_path, download=False)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"cifar10.*cifar-10-batches-py"):
        load("cifar10", tmp_path, download=False)


def test_the_official_archive_is_unpacked_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tarfile

    data = write_cifar(tmp_path / "cifar-10-batches-py")
    place = tmp_path / "home" / "cifar-10-batches-py"
    place.mkdir(parents=True)
    archive = place / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
        tar.add(__file__, "cifar-10-batches-py/data_batch_9")  # no batch of the data set
    offline = replace(SETS["cifar10"], mirrors=(), files={archive.name: file_of(archive)})
    monkeypatch.setitem(SETS, "cifar10", offline)
    assert np.array_equal(load("cifar10", tmp_path / "home").images[:4].reshape(4, -1), data)
    (place / "data_batch_2").unlink()  # as the message about a damaged one says
    assert len(load("cifar10", tmp_path / "home").labels) == 20
    assert sorted(f.name for f in place.iterdir()) == [
        archive.name, *(f"data_batch_{i}" for i in range(1, 6)), "test_batch"
    ]  # fmt: skip


def test_old_pickles_of_arrays_are_readable() -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    raw = pickle.dumps({b"data": array}, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert np.array_equal(load_arrays(raw)[b"data"], array)


def test_missing_files_without_download_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mnist.*MNIST/raw.*HONESTLY_DATA"):
        load("mnist", tmp_path, download=False)


def test_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "RETRIES", 0)
    nowhere = ("http://127.0.0.1:9/", "http://127.0.0.1:9/other/")
    monkeypatch.setitem(SETS, "fmnist", replace(SETS["fmnist"], mirrors=nowhere))
    with pytest.raises(DownloadError, match=r"could not download dataset 'fmnist'(.|\n)*--data(.|\n)*dataset=digits"):
        load("fmnist", tmp_path)


def test_a_download_is_verified_and_the_next_mirror_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    write_idx(tmp_path / "good" / "raw", zipped=True)
    write_idx(tmp_path / "bad" / "raw", zipped=True, n=3)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        top = f"http://127.0.0.1:{server.server_address[1]}"
        mirrors = (f"{top}/bad/raw/", f"{top}/good/raw/")
        good = tmp_path / "good" / "raw"
        sums = {f.name: file_of(f) for f in good.iterdir()}
        monkeypatch.setitem(SETS, "mnist", replace(SETS["mnist"], mirrors=mirrors, files=sums))
        data = load("mnist", tmp_path / "home")
    finally:
        server.shutdown()
        server.server_close()
    assert len(data.labels) == 12
    assert len(load("mnist", tmp_path / "home", download=False).labels) == 12


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="unknown dataset 'fminst': did you mean fmnist"):
        load("fminst")


def test_padding_is_centred_and_black() -> None:
    images = np.full((2, 1, 28, 28), 9, dtype=np.uint8)
    padded = prepare(images, (32, 32))
    assert np.array_equal(padded[:, :, 2:30, 2:30], images)
    assert padded.sum() == images.sum()


def test_small_images_are_enlarged_by_whole_pixels() -> None:
    images = np.arange(64, dtype=np.uint8).reshape(1, 1, 8, 8)
    assert np.array_equal(prepare(images, (32, 32))[:, :, ::4, ::4], images)


def test_bilinear_resizing_matches_pytorch() -> None:
    import torch

    images = np.random.default_rng(0).integers(0, 256, (3, 2, 28, 28), dtype=np.uint8)
    expected = torch.nn.functional.interpolate(torch.from_numpy(images).float(), (32, 32), mode="bilinear")
    assert np.abs(prepare(images, (32, 32), "resize").astype(float) - expected.numpy()).max() <= 0.51


def test_too_large_images_are_refused() -> None:
    with pytest.raises(ValueError, match="32 x 32 pixels do not fit a model for 28 x 28"):
        prepare(np.zeros((1, 1, 32, 32), np.uint8), (28, 28))
