"""RobustFedAvg without a usable majority, or with nodes that never answer: the old model is kept."""

from __future__ import annotations

import logging

import pytest
from flower_messages import (
    BAD,
    failed,
    grid,
    honest,
    lying,
    model,
    nan,
    record,
    reply,
    update,
)
from flwr.app import ConfigRecord

from honestly.flower import RobustFedAvg
from honestly.rules import Krum

pytestmark = pytest.mark.usefixtures("inside_a_run")


def test_without_a_majority_the_old_model_is_kept_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    strategy = RobustFedAvg()
    broken = [failed(BAD + k) for k in range(4)]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        arrays, metrics = strategy.aggregate_train(1, [*honest(4), *broken])
    assert arrays is None
    assert metrics is not None
    assert metrics["kept-old-model"] == 1
    assert "only 4 of 8 clients sent a usable update" in strategy.history[-1].status
    assert any("the old model was kept" in message for message in caplog.messages)


def test_flowers_own_error_in_place_of_lost_replies_is_no_client() -> None:
    """The SuperLink, node 1, sends it for every node that was killed while it uploaded."""
    strategy = RobustFedAvg(fraction_train=1.0, min_available_nodes=2)
    nodes = [message.metadata.src_node_id for message in honest(6)]
    strategy.configure_train(1, record(model()), ConfigRecord(), grid([*nodes, BAD, BAD + 1]))
    arrays, _ = strategy.aggregate_train(1, [*honest(6), failed(1), failed(1)])
    assert arrays is not None
    assert strategy.excluded == {BAD: "sent no reply", BAD + 1: "sent no reply"}
    assert 1 not in strategy.history[-1].clients


def test_the_quorum_is_configurable() -> None:
    replies = [*honest(4), *(failed(BAD + k) for k in range(3)), nan()]
    assert RobustFedAvg(quorum=0.25).aggregate_train(1, replies)[0] is not None
    assert RobustFedAvg(quorum=0.75).aggregate_train(1, [*honest(4), failed(BAD)])[0] is not None
    assert RobustFedAvg(quorum=0.8).aggregate_train(1, [*honest(4), failed(BAD)])[0] is None
    for wrong in (-0.1, 1.0, "most"):
        with pytest.raises(ValueError, match="quorum"):
            RobustFedAvg(quorum=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="doubt"):
        RobustFedAvg(doubt="panic")  # type: ignore[arg-type]


def test_doubt_keep_keeps_the_old_model() -> None:
    """Two clients contradict one another, and nothing tells which of them is right."""
    two = [lying(BAD)]
    doubtful = RobustFedAvg(doubt="keep")
    arrays, _ = doubtful.aggregate_train(1, [*honest(1), *two])
    assert doubtful.history[-1].attention
    assert arrays is None
    assert "contradict" in doubtful.history[-1].status
    assert RobustFedAvg(doubt="accept").aggregate_train(1, [*honest(1), *two])[0] is not None


def test_a_sampled_node_that_never_answers_is_reported_and_counts_for_the_quorum() -> None:
    good = honest(5)
    nodes = [m.metadata.src_node_id for m in good]
    strategy = RobustFedAvg()
    strategy.configure_train(3, record(model()), ConfigRecord(), grid([*nodes, BAD]))
    arrays, _ = strategy.aggregate_train(3, good)
    assert arrays is not None
    assert strategy.excluded == {BAD: "sent no reply"}
    strategy.configure_train(4, record(model()), ConfigRecord(), grid([*nodes, *(BAD + k for k in range(5))]))
    assert strategy.aggregate_train(4, good)[0] is None
    assert strategy.aggregate_train(5, [])[0] is None


def test_a_node_that_was_not_asked_has_no_vote() -> None:
    good = honest(5)
    strategy = RobustFedAvg()
    strategy.configure_train(1, record(model()), ConfigRecord(), grid(m.metadata.src_node_id for m in good))
    strategy.aggregate_train(1, [*good, reply(BAD, update(BAD))])
    assert strategy.excluded == {BAD: "was not asked in this round"}


def test_a_rule_that_cannot_work_with_the_sample_says_so_before_anyone_trains() -> None:
    strategy = RobustFedAvg(rule=Krum(f=4))
    with pytest.raises(ValueError, match="needs at least"):
        strategy.configure_train(1, record(model()), ConfigRecord(), grid(range(5)))


def test_too_few_replies_for_the_rule_keep_the_old_model() -> None:
    strategy = RobustFedAvg(rule=Krum(f=2), quorum=0.2)
    arrays, _ = strategy.aggregate_train(1, [*honest(3), *(failed(BAD + k) for k in range(4))])
    assert arrays is None
    assert "needs at least" in strategy.history[-1].status
