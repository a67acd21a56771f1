"""Records of any kind become rounds of one form."""

from __future__ import annotations

import json
import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from study_being_run import record

from honestly.federation.record import Round
from honestly.show.live.rounds import MOST_CLIENTS, detail

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)
KEYS = (*record(1), "clients", "kept", "attention", "rubbish")


def test_a_record_of_the_simulator() -> None:
    found = detail([record(1), record(2)], {"clients": 6, "rounds": 10, "rule": {"name": "bayesian", "memory": None}})
    assert found.clients == 6
    assert found.shown == tuple(range(6))
    assert found.truth
    assert found.belief == "honesty"
    assert found.settings == {"clients": "6", "rounds": "10", "rule": "bayesian", "rule.memory": ""}
    first = found.rounds[0]
    assert first["attacked"] == first["accused"] == [4, 5]
    assert all(value > 900 for value in first["belief"][:4])
    assert all(value < 200 for value in first["belief"][4:])
    assert "here" not in first
    assert "note" not in first


def test_a_round_of_a_real_federation_names_clients_and_knows_no_truth() -> None:
    evil = "<img src=x onerror=alert(1)>"
    rounds = [
        Round(
            1,
            ("a", evil),
            {"a": 0.9, evil: 0.1},
            None,
            {},
            False,
            "fine",
            False,
            {"acc": 0.5},
            accusations={evil: evil},
        ),
        Round(2, ("a", "b"), {"a": 0.9, "b": 0.0}, None, {"b": "sent NaN"}, True, "kept: too few", True),
    ]
    roster = ("a", evil, "b")
    found = detail([json.loads(json.dumps(r.as_json(roster))) for r in rounds], None)
    assert found.names == roster
    assert not found.truth
    assert found.rounds[0]["accuracy"] == 0.5
    assert found.rounds[0]["accused"] == [1]
    assert found.rounds[0]["why"] == {"1": evil}  # the page shows it as text
    assert "why" not in found.rounds[1]
    assert found.rounds[0]["belief"] == [900, 100, None]
    assert found.rounds[0]["here"] == [0, 1]
    assert found.rounds[1]["excluded"] == {"2": "sent NaN"}
    assert found.rounds[1]["note"] == "kept: too few"


def test_weights_are_relative_to_the_largest_of_the_round() -> None:
    (found,) = detail([{"round": 1, "weights": [0.5, 0.25, 0.0, None]}], {"clients": 4}).rounds
    assert found["belief"] == [1000, 500, 0, None]


def test_a_sample_of_thousands_of_clients_includes_the_last() -> None:
    K = 10_000
    found = detail([{"round": 1, "honesty": [0.5] * K, "attacked": list(range(6000, K))}], {"clients": K})
    assert len(found.shown) == len(found.rounds[0]["belief"]) == MOST_CLIENTS
    assert found.shown[0] == 0
    assert found.shown[-1] == K - 1
    assert len(found.rounds[0]["attacked"]) / MOST_CLIENTS == pytest.approx(0.4, abs=0.01)


def test_a_hundred_rounds_of_twenty_clients_are_small() -> None:
    found = detail([record(t, clients=20) for t in range(1, 101)], {"clients": 20})
    assert len(json.dumps(found.rounds, separators=(",", ":"))) < 40_000


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), ANYTHING) | ANYTHING, max_size=4), ANYTHING)
def test_rounds_have_one_form_whatever_the_records_hold(records: list[Any], experiment: Any) -> None:
    found = detail(records, experiment)
    json.dumps([found.head(), found.rounds], allow_nan=False).encode()
    assert len(found.rounds) == len(records)
    inside = set(found.shown)
    for one in found.rounds:
        assert {"round", "accuracy", "asr", "belief", "attacked", "accused", "false", "missed"} <= set(one)
        assert inside.issuperset(one["attacked"])
        assert inside.issuperset(one["accused"] or [])
        assert inside.issuperset(map(int, one.get("excluded", {})))
        for value in (one["accuracy"], one["asr"]):
            assert value is None or math.isfinite(value)
        assert one["belief"] is None or len(one["belief"]) == len(found.shown)
        assert all(v is None or 0 <= v <= 1000 for v in one["belief"] or [])
