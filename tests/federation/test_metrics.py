"""Metrics that clients report: a minority cannot move the result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from honestly.federation.metrics import bad_sizes, out_of_line, robust_metrics

NASTY: Any = st.one_of(
    st.floats(),
    st.integers(),
    st.lists(st.floats(), max_size=3),
    st.sampled_from(["", "nan", b"1", True, None, 10**400]),
)


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=9),
    st.lists(st.dictionaries(st.sampled_from(["loss", "x"]), NASTY, max_size=2), max_size=2),
)
def test_a_minority_cannot_move_a_metric_out_of_the_range_of_the_others(honest: list[float], lies: list[Any]) -> None:
    reports: dict[Any, Any] = {k: {"loss": value} for k, value in enumerate(honest)}
    reports |= {f"liar {k}": lie for k, lie in enumerate(lies)}
    found = robust_metrics(reports, {})
    assert min(honest) <= found["loss"] <= max(honest)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12))
def test_with_equal_votes_it_is_the_median(values: list[float]) -> None:
    found = robust_metrics({k: {"m": v} for k, v in enumerate(values)}, {})
    assert math.isclose(found["m"], float(np.median(values)), rel_tol=1e-12, abs_tol=1e-9)


def test_votes_count_and_a_refused_client_has_none() -> None:
    reports = {1: {"acc": 0.9}, 2: {"acc": 0.1}, 3: {"acc": 0.1}}
    assert robust_metrics(reports, {1: 1.0, 2: 0.3, 3: 0.0}) == {"acc": 0.9}
    assert robust_metrics(reports, {1: 0.0, 2: 0.0, 3: 0.0}) == {"acc": 0.1}
    assert robust_metrics({}, {}) == {}


def test_lists_are_taken_entry_by_entry_and_bad_values_count_for_nobody() -> None:
    reports = {1: {"c": [0.1, 0.2]}, 2: {"c": [0.3, math.nan]}, 3: {"c": [0.5, 0.4]}, 4: {"c": [1.0]}}
    assert robust_metrics(reports, {}) == {"c": [0.3, 0.30000000000000004]}


@given(st.lists(NASTY, max_size=6))
def test_sizes_never_raise_and_every_reason_has_a_client(sizes: list[Any]) -> None:
    reasons = bad_sizes(dict(enumerate(sizes)))
    assert all(isinstance(reason, str) and len(reason) < 200 for reason in reasons.values())
    for k, size in enumerate(sizes):
        if isinstance(size, float) and not (size >= 0 and math.isfinite(size)):
            assert k in reasons


def test_few_clients_with_equal_metrics_do_not_exclude_the_others() -> None:
    reports = [{"loss": 0.1, f"accuracy-{k}": 0.5} for k in range(6)] + [{"loss": 9.0}, {"loss": 9.0}]
    assert out_of_line(dict(enumerate(reports))) == {}
    epochs = [{"losses": [0.1] * n} for n in (1, 2, 2, 3, 3, 4)]
    assert out_of_line(dict(enumerate(epochs))) == {}


@given(st.lists(st.dictionaries(st.sampled_from(["", "a", "loss"]), NASTY, max_size=3), max_size=6))
def test_forms_never_raise_and_the_most_common_form_is_not_blamed(reports: list[Any]) -> None:
    blamed = out_of_line(dict(enumerate(reports)))
    assert len(blamed) < max(len(reports), 1)
