"""`honestly report` draws the history of the Flower strategy, which shows the clients that it believed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from flower_messages import FIRST_NODE, grid, honest, lying, model, record, reply, update
from flwr.app import ConfigRecord

from honestly.cli import main
from honestly.flower import RobustFedAvg

pytestmark = pytest.mark.usefixtures("inside_a_run")
LIAR, BROKEN = FIRST_NODE + 50, FIRST_NODE + 51


def test_the_strategys_history_is_drawn(tmp_path: Path) -> None:
    strategy = RobustFedAvg(history=tmp_path / "mine")
    for number in (1, 2, 3):
        broken = update(BROKEN)
        broken["conv.weight"][0, 0] = float("nan")
        strategy.aggregate_train(number, [*honest(), lying(LIAR), lying(LIAR + 7), reply(BROKEN, broken)])
    assert main(["report", str(tmp_path / "mine"), "--no-figures", "--quiet"]) == 0
    page = (tmp_path / "mine" / "report" / "index.html").read_text(encoding="utf-8")
    assert f"<title>client {LIAR}, rounds 1–3: honesty 0.00, accused</title>" in page
    assert f"<title>client {BROKEN}, rounds 1–3: honesty 0.00, excluded: " in page
    assert "NaN" in page
    assert re.search(rf"<title>client {FIRST_NODE}, rounds? 1[^:]*: honesty [\d.]+</title>", page)
    text = (tmp_path / "mine" / "report" / "README.md").read_text(encoding="utf-8")
    assert f"| {LIAR} | 3 | 0 |" in text
    assert f"| {BROKEN} | 0 | 3 |" in text
    assert str(FIRST_NODE) not in text  # only those that something is held against


@pytest.mark.parametrize(("run", "title"), [("", "Federation 4711"), ("spring", "Federation spring")])
def test_the_page_has_the_name_of_the_run_or_flowers_id(tmp_path: Path, run: str, title: str) -> None:
    strategy = RobustFedAvg(history=tmp_path / "mine", run=run)
    replies = honest()
    nodes = grid(message.metadata.src_node_id for message in replies)
    nodes.run = SimpleNamespace(run_id=4711)
    strategy.configure_train(1, record(model()), ConfigRecord(), nodes)
    strategy.aggregate_train(1, replies)
    assert main(["report", str(tmp_path / "mine"), "--no-figures", "--quiet"]) == 0
    page = (tmp_path / "mine" / "report" / "index.html").read_text(encoding="utf-8")
    assert f"<h1>{title}</h1>" in page
