"""Training without rounds in a real deployment: a SuperLink and SuperNodes as processes, liars among them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from flower_processes import EXAMPLES, flower

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVER = """
import json
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import honestly as hn
from honestly.flower import train_buffered
from quickstart.task import new_model, test, test_set

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out, found = Path(str(context.run_config["out"])), []

    def on_version(version: int, arrays: ArrayRecord) -> None:
        found.append(test(arrays.to_numpy_ndarrays(), *test_set())[1])

    buffer = hn.Buffer(5, folder=out / "buffer", history=out)
    train_buffered(grid, buffer, ArrayRecord(new_model()), versions=6, pull_interval=0.2, on_version=on_version)
    (out / "accuracy.json").write_text(json.dumps(found))
"""


def test_nodes_answer_when_they_are_ready(tmp_path: Path) -> None:
    attacks = ["", "", "", "", "", "", "sign_flip", "nan", "wrong_shape"]
    app = tmp_path / "flower-quickstart"
    shutil.copytree(EXAMPLES / "flower-quickstart", app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "quickstart" / "server_app.py").write_text(SERVER)
    with flower(tmp_path) as federation:
        federation.superlink()
        for k, attack in enumerate(attacks):
            federation.supernode(k, len(attacks), attack=attack)
        federation.run("flower-quickstart", {"local-epochs": 10, "out": str(tmp_path / "out")})
        assert federation.finish(seconds=400) == ["finished:completed"]
    lines = [json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    reasons = [why for line in lines for why in line["reasons"].values()]
    assert any("not finite" in why for why in reasons)
    assert any("shape" in why for why in reasons)
    assert json.loads((tmp_path / "out" / "accuracy.json").read_text())[-1] > 0.7
