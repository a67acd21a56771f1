from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from honestly.runs.store import Store
from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.studies import estimate as module
from honestly.studies.estimate import calibrate, estimate, noise_dataset
from honestly.studies.study import Study
from honestly.studies.work import WorkOptions, one_by_one

STUDY = """
name = "small"
[base]
clients = 4
epochs = 1
rounds = 4
model = "mlp"
[axes]
rule = ["mean", "median"]
batch = [16, 32]
seed = [0, 1]
"""


def test_finished_runs_are_measured_and_others_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = Study.parse(STUDY).entries()
    shapes: list[str] = []

    def slow(experiment: Experiment, device: str) -> float:
        shapes.append(f"{experiment.batch} {device}")
        return 100.0

    monkeypatch.setattr(module, "calibrate", slow)
    none = estimate(entries, None, "cpu")
    assert (none.runs, none.done, none.rounds, none.seconds) == (8, 0, 32, 3200.0)
    assert (none.measured, none.calibrated, shapes) == (0, 8, ["16 cpu", "32 cpu"])
    with Store.open(tmp_path) as store:
        store.add(entries)
        one_by_one(store, {entries[0].id}, "w", WorkOptions())
        some = estimate(entries, store, "cpu")
        assert (some.done, some.rounds, some.measured, some.calibrated) == (1, 28, 3, 4)
        laps = [sum(v for k, v in lap.items() if k != "images") for lap in store.seconds(entries[0].id)]
        assert 1600 + 12 * min(laps) <= some.seconds <= 1600 + 12 * max(laps)
        assert estimate(entries, store, "cuda").measured == 0, "another device takes another time"


@pytest.mark.parametrize("settings", [{"clients": 10}, {"clients": 2, "epochs": 1, "batch": 8}, {"dataset": "cifar10"}])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_calibration_does_not_scale_fixed_costs(
    settings: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def timed(
        e: Experiment, device: str, per_client: int, epochs: int, clients: int
    ) -> tuple[dict[str, float], int, int]:
        images = per_client * epochs * clients
        sizes.append(images)
        return {"train": 0.02 + images * 1e-4, "evaluate": 0.1, "aggregate": 0.5}, images, 100

    monkeypatch.setattr(module, "_short_round", timed)
    e = Experiment.of(settings)
    _, _, images, tests = module.SIZES[e.dataset]
    real = 0.02 + images * e.epochs * 1e-4 + 0.1 * tests / 100 + 0.5
    assert calibrate(e, device) == pytest.approx(real, rel=0.1)
    assert sizes == sorted(set(sizes)), "it grows"
    assert sizes[-1] <= max(2 * 0.5 / 1e-4, e.batch * e.clients), "no longer than it takes"


@pytest.mark.parametrize("dataset", ["mnist", "fmnist"])
def test_a_calibration_needs_no_data(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONESTLY_DATA", "/nowhere")
    assert 0 < calibrate(Experiment.of({"dataset": dataset}), "cpu") < 3600


def test_custom_data_is_calibrated_on_its_own_images(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import replace\n"
        "from honestly.sim.data import load\n"
        "def few():\n"
        "    d = load('digits')\n"
        "    return replace(d, images=d.images[:60], labels=d.labels[:60],\n"
        "                   test_images=d.test_images[:9], test_labels=d.test_labels[:9])\n"
    )
    name = f"{own}:few"
    assert module.numbers(name) == (60, 9)
    assert (noise_dataset(name, 30, 5).images == load("digits").images[:30]).all()
    assert 0 < calibrate(Experiment.of({"dataset": name, "model": "mlp", "clients": 3, "epochs": 1}), "cpu") < 60


def test_noise_data_has_the_shape_of_real_data() -> None:
    real, fake = load("digits"), noise_dataset("digits", 7, 5)
    assert (fake.size, len(fake.classes), len(fake.images), len(fake.test_labels)) == (real.size, 10, 7, 5)
    assert module.SIZES["digits"][2:] == (len(real.labels), len(real.test_labels))
    assert replace(fake, images=real.images).images.dtype == fake.images.dtype
    assert json.loads(module.shape_of({"dataset": "x"}))[0] == "x"
