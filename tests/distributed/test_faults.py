"""Ranks that ask for different things, die, hang or lie in their slice."""

from __future__ import annotations

import pytest
import rank_jobs as jobs
from ranks import run

import honestly as hn

GIVEN = jobs.updates(3, ((6, 5), (7,)))


def the_same_error(found: list[tuple[str, str]], name: str) -> str:
    assert len(set(found)) == 1
    assert found[0][0] == name
    return found[0][1]


def test_different_rules() -> None:
    text = the_same_error(run(jobs.failing, 3, GIVEN, [{}, {"rule": "median"}, {}]), "DisagreementError")
    assert "ranks [0, 2] agree" in text
    assert "rank 1 asks for 'rule Median()" in text


def test_different_tensors() -> None:
    given = [GIVEN[0], GIVEN[1], jobs.updates(1, ((5, 6), (7,)))[0]]
    text = the_same_error(run(jobs.failing, 3, given, [{}] * 3), "DisagreementError")
    assert "rank 2 asks for '[0] (5, 6) torch.float32 cpu' instead of '[0] (6, 5) torch.float32 cpu'" in text
    given = [GIVEN[0], GIVEN[1][:1], GIVEN[2]]
    text = the_same_error(run(jobs.failing, 3, given, [{}] * 3), "DisagreementError")
    assert "rank 1 asks for '1 tensors' instead of '2 tensors'" in text


def test_different_dtypes() -> None:
    text = the_same_error(run(jobs.failing, 3, GIVEN, [{"dtype": "bfloat16"}, {}, {}]), "DisagreementError")
    assert "rank 0 asks for '[0] (6, 5) torch.bfloat16 cpu'" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int64"}, "rank 1: tensor '[0]' has dtype torch.int64"),
        ({"rule": "medain"}, "rank 1: unknown rule 'medain'"),
        ({"reference": jobs.Unreadable()}, "rank 1: RuntimeError: w is gone"),
        ({"verify": -1.0}, "rank 1: verify must be a number >= 0"),
        ({"verify": None}, "rank 1: verify must be a number >= 0"),
        ({"timeout": 30}, "rank 1: timeout is 30; expected a datetime.timedelta"),
        ({"layers": [3]}, "rank 1: layers is for one flat tensor"),
        ({"layers": 5, "flat": True}, "rank 1: layers is 5; expected the number of values of each layer"),
    ],
)
def test_an_error_on_one_rank_is_an_error_on_all(options: dict, words: str) -> None:
    assert words in the_same_error(run(jobs.failing, 3, GIVEN, [{}, options, {}]), "DisagreementError")


def test_too_few_ranks_for_the_rule() -> None:
    found = run(jobs.failing, 3, GIVEN, [{"rule": hn.Krum(f=1)}] * 3)
    assert "Krum(f=1) needs at least 2f+3 = 5 ranks, got 3" in the_same_error(found, "DisagreementError")


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_missing_rank_is_an_error_before_the_timeout(how: str) -> None:
    found = run(jobs.gone, 3, how, returns=2)
    for text, seconds in found[:2]:
        assert text.startswith("RankError: rank ")
        assert "among the ranks [0, 1, 2] did not end: one of them has died, hangs" in text
        assert seconds < 20  # the group's own timeout is 30 s


def test_the_group_of_an_asynchronous_all_reduce_has_the_same_timeout() -> None:
    """PyTorch gives new groups half an hour."""
    for text, seconds in run(jobs.never_joined, 3, timeout=6.0, returns=2)[:2]:
        assert text.startswith("RankError: rank ")
        assert seconds < 40


@pytest.mark.parametrize(("lie", "rule"), [("result", "median"), ("result", "bayesian"), ("gram", "bayesian")])
def test_a_lie_in_a_slice_is_caught_by_a_check(lie: str, rule: str) -> None:
    found = run(jobs.lying, 3, GIVEN, 2, lie, rule)
    assert len(set(found)) == 1
    wrong = "`gram` is wrong" if lie == "gram" else "values of the result are wrong"
    caught = "the slice of rank 2: " in found[0] and "computed it again and agree" in found[0]
    framed = found[0].startswith("rank 2 says of the slice of rank") and "finds nothing wrong" in found[0]
    assert wrong in found[0]
    assert caught or (framed and lie == "gram")  # a rank that computes wrongly does so in its checks, too
