"""Who is odd in which layer: the map of `honestly aggregate --report`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from honestly.show.aggregate_page import sentence
from honestly.show.chart import DOT
from honestly.show.layer_map import MOST_CLIENTS, MOST_LAYERS, layer_map


def report(table: dict[str, list[Any]], verdicts: list[str] | None = None, **more: Any) -> dict[str, Any]:
    K = len(next(iter(table.values()), []))
    verdicts = verdicts or ["trusted"] * K
    clients = [{"id": f"c{k}.safetensors", "verdict": verdicts[k]} for k in range(K)]
    excluded = [c["id"] for c in clients if c["verdict"] == "excluded"]
    return {"layers": table, "clients": clients, "excluded": excluded, "malicious": 0.0, **more}


def test_colours_follow_the_multiple_of_the_median_client() -> None:
    found = layer_map(report({"a": [1.0, 1.0, 100.0], "b": [2.0, 20.0, 2.0]}))
    assert found is not None
    assert found.rows == ["a", "b"]
    assert found.columns == ["c0", "c1", "c2"]
    np.testing.assert_allclose(found.values, [[1, 1, 0], [1, 0.5, 1]])
    assert found.word(0, 2) == "100 times as far as the median client"


def test_what_the_rule_holds_against_a_client_is_marked() -> None:
    held = {"block.0": [-7.0, 3.5, None], "head.bias": [-7.0, -7.0, None]}
    table = {"block.0.weight": [1.0, 50.0, None], "head.bias": [1.0, 1.0, None]}
    found = layer_map(report(table, ["trusted", "accused", "excluded"], evidence=held))
    assert found is not None
    assert found.columns == ["c0", "c1"]  # nothing was measured of a client that was excluded
    assert found.marks is not None
    assert found.marks.tolist() == [[0, DOT], [0, 0]]
    assert "evidence against it 3.5" in found.word(0, 1)


def test_only_the_most_unusual_of_many_layers_and_clients_are_drawn() -> None:
    table = {f"t{i}": [1.0] * 200 for i in range(300)}
    table["t250"][150] = 1000.0
    found = layer_map(report(table))
    assert found is not None
    assert found.values.shape == (MOST_LAYERS, MOST_CLIENTS)
    assert found.values[list(found.rows).index("t250"), list(found.columns).index("c150")] == 0


@pytest.mark.parametrize("table", [{}, {"a": [None, None]}])
def test_without_distances_there_is_no_map(table: dict[str, list[Any]]) -> None:
    assert layer_map(report(table)) is None


def test_a_layer_in_which_nobody_moved_accuses_nobody() -> None:
    found = layer_map(report({"a": [0.0, 0.0, 0.0], "b": [0.0, 0.0, 3.0]}))
    assert found is not None
    assert found.values.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert math.isfinite(found.values.sum())


def test_the_sentence_names_whom_to_look_at() -> None:
    verdicts = ["trusted", "accused", "unusual", "excluded"]
    assert sentence(report({"a": [1.0] * 4}, verdicts)) == (
        "3 of 4 updates were usable; accused of lying: c1; unusual: c2; excluded: c3."
    )
    many = sentence(report({"a": [1.0] * 9}, ["accused"] * 9))
    assert many.endswith("c4 and 4 more.")
    assert sentence(report({"a": [1.0]})) == "1 of 1 updates were usable; nobody accused of lying."
