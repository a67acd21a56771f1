"""Truth, belief and weights of a run as maps."""

from __future__ import annotations

import math

import pytest

from honestly.runs.record import RoundRecord
from honestly.show.live.rounds import detail
from honestly.show.maps import BELIEF, weight_map
from honestly.show.run import RunView

NAMES = ("a", "b", "c")


def rounds(honesty: list[float | None], weights: list[float | None] | None) -> list[RoundRecord]:
    return [RoundRecord(round=t, honesty=honesty, weights=weights, attacked=(2,)) for t in (1, 2)]


def test_a_believed_client_with_a_small_weight_is_shown() -> None:
    found = weight_map(rounds([1.0, 1.0, 0.9], [0.5, 0.4, 0.1]), NAMES)
    assert found is not None
    assert found.values.tolist() == [[1, 1], [pytest.approx(0.8)] * 2, [pytest.approx(0.2)] * 2]
    assert found.word(2, 0) == "weight 0.20 of the largest"
    titles = [one.title for one in RunView("x", rounds([1.0, 1.0, 0.9], [0.5, 0.4, 0.1]), NAMES).maps()]
    assert titles == ["Who really attacked", BELIEF["honesty"], BELIEF["weights"]]


@pytest.mark.parametrize(
    ("honesty", "weights"),
    [
        ([1.0, 1.0, 0.0], [0.5, 0.5, 0.0]),  # weights repeat what honesty says
        ([1.0, 1.0, 1.0], None),
        ([1.0, None, 1.0], [0.5, None, 0.5]),
    ],
)
def test_weights_that_tell_no_more_than_honesty_are_not_shown(honesty: list[float | None], weights: object) -> None:
    assert weight_map(rounds(honesty, weights), NAMES) is None  # type: ignore[arg-type]
    found = detail([r.as_json() for r in rounds(honesty, weights)], {"clients": 3})  # type: ignore[arg-type]
    assert not found.weights
    assert all("weight" not in r for r in found.rounds)


def test_the_live_page_gets_the_same_weights() -> None:
    records = rounds([1.0, 1.0, 0.9], [0.5, 0.4, 0.1])
    found = detail([r.as_json() for r in records], {"clients": 3})
    assert found.weights
    assert [r["weight"] for r in found.rounds] == [[1000, 800, 200]] * 2


def test_a_client_that_did_not_take_part_has_no_weight() -> None:
    found = weight_map(rounds([1.0, None, 1.0], [0.9, None, 0.1]), NAMES)
    assert found is not None
    assert math.isnan(found.values[1, 0])
    assert found.word(1, 0) == ""
