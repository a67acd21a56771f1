"""Names instead of node ids in logs, histories and reports. Names may be hostile."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from honestly.federation import Referee, Reply
from honestly.federation.names import Names, read_names
from honestly.runs.reader import read

ERRS = "it errs in the same direction as"


def replies(K: int = 8) -> list[Reply]:
    rng = np.random.default_rng(0)
    found = [rng.normal(1, 0.1, 200) for _ in range(K)]
    found[-2:] = [-3 * x for x in found[-2:]]
    return [Reply(10**18 + k, update={"w": x}, size=10) for k, x in enumerate(found)]


def test_logs_and_history_have_names(tmp_path: Path) -> None:
    lines: list[str] = []
    names = {10**18 + 7: "Uppsala", str(10**18 + 6): "Lund"}  # JSON's keys are text
    referee = Referee("bayesian", history=tmp_path, names=names, log=lambda level, text: lines.append(text))
    _, record = referee.judge(1, [*replies(), Reply(5, fault="broken")])
    assert record.accused == (10**18 + 6, 10**18 + 7)  # in Python clients are known by their ids
    assert any("client Uppsala [1000000000000000007] is not believed" in line for line in lines)
    assert any("client 5 excluded: broken" in line for line in lines)
    honesty = (record.honesty or {})[10**18 + 7]
    assert any(line.endswith(f"(honesty {honesty:.3f}): {ERRS} Lund") for line in lines)
    referee.judge(2, replies()[:5])  # a round without the named clients
    first, second = map(json.loads, (tmp_path / "rounds.jsonl").read_text().splitlines())
    assert first["accused"] == ["Lund", "Uppsala"]
    assert first["accusations"] == {"Lund": f"{ERRS} Uppsala", "Uppsala": f"{ERRS} Lund"}
    assert first["excluded"] == ["5"]
    assert first["clients"] == second["clients"]
    assert first["ids"] == [str(10**18 + k) for k in range(8)] + ["5"]
    shown = read([first, second])
    assert shown.clients[6:8] == ["Lund", "Uppsala"]
    assert shown.records[0].accused == [6, 7]
    rows = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    assert rows[7]["client"] == "Uppsala"


def test_without_names_the_history_is_as_before(tmp_path: Path) -> None:
    Referee("mean", history=tmp_path).judge(1, replies())
    line = json.loads((tmp_path / "rounds.jsonl").read_text())
    assert "ids" not in line
    assert line["clients"] == [str(10**18 + k) for k in range(8)]


@pytest.mark.parametrize("as_function", [False, True])
def test_hostile_names(as_function: bool) -> None:
    given: dict[Any, Any] = {
        1: "\x1b[2J\n\u202egood", 2: "x" * 500, 3: "", 4: None, 5: "same", 6: "same", 7: "same (5)", 8: "9", 9: "",
        10: "a\nb   c", 11: ["a", "list"], 12: "\ud800",
    }  # fmt: skip
    names = Names(given.get if as_function else given)
    labels = [names(client) for client in [*given, 13]]
    assert len(set(labels)) == len(labels)
    assert all(label.isprintable() and 0 < len(label) <= 100 for label in labels)
    assert labels[2] == "3"
    assert labels[-1] == "13"
    assert [names(client) for client in [*given, 13]] == labels


def test_a_function_that_fails_loses_only_the_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert Names(lambda client: 1 / 0)("a") == "a"  # type: ignore[arg-type,return-value]
    assert "names failed for client a" in caplog.text


def test_wrong_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a mapping"):
        Referee("mean", names=3)  # type: ignore[arg-type]
    file = tmp_path / "names.json"
    for text in ("[1]", '{"a": 3}', "{"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"names\.json"):
            read_names(str(file))
