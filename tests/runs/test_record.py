"""Records survive a round trip through a file; records read from any file are typed."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from study_being_run import record

from honestly.federation.record import Round
from honestly.runs.reader import MOST_CLIENTS, join, read, read_record
from honestly.runs.record import COLUMNS, LATER, NAMED, OPTIONAL, SCALARS, SERVED, SIMULATED, RoundRecord
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation
from honestly.sim.summary import summary

NAMES = [field.name for field in fields(RoundRecord)]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


def test_every_list_of_names_names_fields() -> None:
    for names in (SIMULATED, SERVED, LATER, OPTIONAL, NAMED, COLUMNS, SCALARS):
        assert set(names) <= set(NAMES)
    assert {*SIMULATED, *SERVED, *LATER, *OPTIONAL} == set(NAMES), "a field that no file has"


def test_a_simulated_round_has_the_bytes_of_earlier_versions_and_comes_back() -> None:
    e = Experiment.of({"rounds": 1, "clients": 4, "epochs": 1, "rule": "bayesian", "attack": "nan", "malicious": 1})
    (found,) = [one.found for one in Federation(e).rounds()]
    line = json.dumps(found.as_json(), separators=(",", ":"), allow_nan=False)
    head = '{"round":1,"accuracy":0.'
    assert line.startswith(head)
    order = ["loss", "asr", "attacked", "honesty", "weights", "excluded", "reasons", "malicious_estimate", "accused"]
    order += ["false_accusations", "misses", "per_class", "participants", "status", "steps", "train_loss"]
    assert list(json.loads(line))[2:] == order
    again, wrong = read_record(json.loads(line))
    assert not wrong
    assert again.as_json() == found.as_json()
    assert found.excluded == [3]


def test_a_round_says_why_clients_were_accused() -> None:
    settings = {"rounds": 2, "clients": 10, "attack": "sign_flip", "malicious": 3}
    plain = Experiment.of(settings | {"rule": "bayesian:variant=paper"})
    *_, found = [one.found for one in Federation(Experiment.of(settings | {"rule": "bayesian"})).rounds()]
    assert set(found.accusations) == {"7", "8", "9"}
    assert all(("opposes" in why) or ("same direction" in why) for why in found.accusations.values())
    again, wrong = read_record(json.loads(json.dumps(found.as_json())))
    assert not wrong
    assert again.accusations == found.accusations
    *_, silent = [one.found for one in Federation(plain).rounds()]
    assert silent.accused
    assert "accusations" not in silent.as_json()  # its honesty is all that this rule says


def test_a_servers_round_names_its_clients_in_the_file_and_counts_them_in_memory() -> None:
    one = Round(7, (2**63, "b"), {2**63: 0.9, "b": 0.1}, None, {"b": "NaN"}, True, "kept", True, {"acc": 0.5})
    written = one.as_json(["new", 2**63, "b"])
    assert list(written) == list(SERVED)
    assert (written["clients"], written["excluded"], written["accused"]) == (["new", str(2**63), "b"], ["b"], [])
    found, wrong = read_record(json.loads(json.dumps(written)))
    assert not wrong
    assert (found.round, found.accuracy, found.excluded, found.participants) == (7, 0.5, [2], [1, 2])
    assert (found.kept, found.attention, found.reasons) == (True, True, {"b": "NaN"})
    assert found.as_json() == written


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("accuracy", "high", None), ("accuracy", True, None), ("asr", 10**400, None), ("asr", [0.5], None),
        ("attacked", "x", []), ("attacked", [1, -1], [1]), ("accused", {"0": 1}, None), ("accused", [0.5, 2.0], [2]),
        ("excluded", [MOST_CLIENTS + 1], []), ("honesty", [1.0, "x"], [1.0, None]), ("weights", 3, None),
        ("misses", -1, None), ("status", 3, ""), ("kept", "yes", False), ("reasons", [1], {}), ("steps", "many", 0),
        ("round", 1e30, 0), ("round", -1, 0), ("clients", "a", None), ("metrics", 1, {}),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_true_is_left_out_and_named(field: str, value: Any, found: Any) -> None:
    one, wrong = read_record({"round": 1, field: value})
    assert wrong == [field]
    assert getattr(one, field) == found
    assert read([{"round": 1, field: value}, {"round": 2}]).damaged == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_number_that_is_none_was_not_measured(value: float | None) -> None:
    one, wrong = read_record({"round": 1, "accuracy": value, "honesty": [value, 0.5]})
    assert not wrong
    assert one.accuracy is None
    assert one.honesty == [None, 0.5]


def test_an_old_record_lacks_fields() -> None:
    (one,) = read([{"round": 1, "accuracy": 0.5, "honesty": [1.0, 0.1, 0.9]}]).records
    assert (one.asr, one.accused, one.attacked, one.excluded, one.kept) == (None, None, (), (), False)
    assert list(one.participants or ()) == [0, 1, 2]


def test_one_index_does_not_cost_the_memory_of_a_billion_clients() -> None:
    assert read([{"round": 1, "attacked": [10**9]}]).damaged == 1


def test_rows_that_do_not_fit_their_names_are_damaged() -> None:
    rows: list[Any] = [
        {"round": 1, "clients": ["a", "b"], "honesty": [1.0]},
        {"round": 1, "clients": ["a", "b"], "participants": [2]},
        {"round": 1, "honesty": [1.0]},  # does not name its clients, as the others do
        {"round": 1, "clients": ["a", "b"], "honesty": [1.0, 0.5]},
    ]
    assert read(rows).damaged == 3


@settings(max_examples=300, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from([*NAMES, "rubbish"]), ANYTHING) | ANYTHING, max_size=4))
def test_whatever_a_file_holds_it_is_read_written_and_summed_up(raw: list[Any]) -> None:
    found, names = join([read_record(value)[0] for value in raw])
    for one in [*found, *read(raw).records]:
        text = json.dumps(one.as_json(), default=str)
        assert "round" in json.loads(text)
        assert all(k < len(names) for k in one.accused or ())
    json.dumps(summary(found), allow_nan=False)


def test_the_summary_is_the_same_of_records_and_of_their_json() -> None:
    raw = [record(t) for t in (1, 2, 3)]
    assert summary(raw) == summary(read(raw).records)
