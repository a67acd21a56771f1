"""The folder of a run with things in it that are no files of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from honestly.sim.experiment import Experiment, ExperimentError
from honestly.sim.run import run

SETTINGS = {"clients": 4, "epochs": 1, "model": "mlp"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run(Experiment.of({**SETTINGS, "rounds": 1}), tmp_path / "run")
    return tmp_path / "run"


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


class TestPipes:
    """Reading one would never end."""

    @pytest.mark.parametrize(
        ("name", "message"),
        [("rounds.jsonl", "not a regular file"), ("experiment.json", r"holds 1 rounds, but no experiment\.json")],
    )
    def test_in_place_of_a_record(self, folder: Path, name: str, message: str) -> None:
        replace_by_a_pipe(folder / name)
        with pytest.raises((OSError, ExperimentError), match=message):
            run(Experiment.of({**SETTINGS, "rounds": 2}), folder)

    def test_in_place_of_a_state(self, folder: Path) -> None:
        replace_by_a_pipe(folder / "state-1.bin")
        warnings: list[str] = []
        assert run(Experiment.of({**SETTINGS, "rounds": 2}), folder, on_warning=warnings.append).finished
        assert "not a regular file" in warnings[0]
