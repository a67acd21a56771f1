"""Event files, read back by TensorBoard itself."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from made_studies import fill
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from honestly.cli import main
from honestly.federation.history import History
from honestly.federation.record import Round
from honestly.runs import reader
from honestly.show.maps import attack_grid
from honestly.show.pixels import rgb_png
from honestly.show.report.sources import load
from honestly.show.tensorboard import SIDE, attacked_colour, export, paint


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    found.Reload()
    return found


def pixels(data: bytes) -> np.ndarray:
    """The pixels of a PNG that has no filters, by the format's description."""
    at, body, size = 8, b"", (0, 0)
    while at < len(data):
        n, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        chunk = data[at + 8 : at + 8 + n]
        assert int.from_bytes(data[at + 8 + n : at + 12 + n], "big") == zlib.crc32(kind + chunk)
        if kind == b"IHDR":
            size = (int.from_bytes(chunk[:4], "big"), int.from_bytes(chunk[4:8], "big"))
        body += chunk if kind == b"IDAT" else b""
        at += 12 + n
    width, height = size
    return (
        np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)
    )


def test_scalars_and_images_of_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fill(tmp_path / "study", "paper-figure1", rounds=3, skip=lambda e: e.cell["rule"] == "Ours (paper)") as store:
        for _ in range(2):  # a second export replaces the first
            assert main(["export", "tensorboard", str(tmp_path / "study"), "-o", str(tmp_path / "logs")]) == 0
        assert "2 runs in" in capsys.readouterr().out
        folders = sorted((tmp_path / "logs").iterdir())
        assert [f.name.rpartition("-")[0] for f in folders] == ["FedAvg-seed-0", "Ours-seed-0"]
        assert all(len(list(f.iterdir())) == 1 for f in folders)
        run = next(r for r in store.runs() if r.cell["rule"] == "Ours")
        records = store.rounds(run.id)
    found = read(folders[1])
    assert [(e.step, e.value) for e in found.Scalars("accuracy")] == [
        (r["round"], pytest.approx(r["accuracy"])) for r in records
    ]
    assert [e.value for e in found.Scalars("misses")] == [r["misses"] for r in records]
    assert set(found.Tags()["images"]) == {"who attacked", "probability of being honest", "accusations"}
    (image,) = found.Images("who attacked")
    assert (image.step, image.width, image.height) == (3, 3 * SIDE, 10 * SIDE)
    drawn = pixels(image.encoded_image_string)[::SIDE, ::SIDE]
    attacked = attack_grid(reader.read(records).records, 10)
    for k, t in np.ndindex(10, 3):
        assert "#" + drawn[k, t].tobytes().hex() == attacked_colour(attacked[k, t])


def test_a_federation_is_exported_without_attackers_under_a_safe_name(tmp_path: Path) -> None:
    history = History(tmp_path / "a b;..")
    history.add(Round(1, ("x", "y"), {"x": 1.0, "y": 0.0}, None, {}, False, "ok", False, evaluation={"accuracy": 0.5}))
    history.write()
    (file,) = export([load(tmp_path / "a b;..")], tmp_path / "logs")
    assert file.parent.parent == tmp_path / "logs"
    assert file.parent.name == "a-b-ab"
    found = read(file.parent)
    assert set(found.Tags()["images"]) == {"probability of being honest", "accusations"}
    assert found.Scalars("accuracy")[0].value == 0.5


def test_a_png_holds_the_pixels() -> None:
    grid = np.array([[0.0, 1.0], [np.nan, 0.0]])
    painted = paint(grid, attacked_colour)
    assert painted.shape == (2 * SIDE, 2 * SIDE, 3)
    assert painted[SIDE, 0].tolist() == [255, 255, 255]
    assert np.array_equal(pixels(rgb_png(painted)), painted)
