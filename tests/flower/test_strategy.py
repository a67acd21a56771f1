"""RobustFedAvg on real Message objects: one bad reply costs that client its vote, never the round."""

from __future__ import annotations

import copy
import io
import json
import logging
import random
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flower_messages import (  # noqa: F401
    FIRST_NODE,
    MODEL,
    failed,
    honest,
    inside_a_run,
    lying,
    metadata,
    model,
    record,
    reply,
    update,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

from honestly.federation.npy import write_npy
from honestly.flower import RobustFedAvg
from honestly.rules import Krum, Mean, Median, MultiKrum
from honestly.rules.nnm import NNM

pytestmark = pytest.mark.usefixtures("inside_a_run")
BAD = FIRST_NODE + 50


def changed(**arrays: Any) -> dict[str, np.ndarray]:
    return update(BAD) | {name.replace("__", "."): np.asarray(values) for name, values in arrays.items()}


def with_array(name: str, array: Array) -> ArrayRecord:
    arrays = record(update(BAD))
    arrays[name] = array
    return arrays


def npy_with_header(header: str) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64


def nan() -> Message:
    arrays = update(BAD)
    arrays["conv.weight"][1, 1] = np.nan
    return reply(BAD, arrays)


def renamed() -> Message:
    arrays = update(BAD)
    arrays["conv.weight2"] = arrays.pop("conv.weight")
    return reply(BAD, arrays)


def missing() -> Message:
    arrays = update(BAD)
    del arrays["conv.bias"]
    return reply(BAD, arrays)


def two_records() -> Message:
    content = RecordDict(
        {"a": record(update(BAD)), "b": record(update(BAD)), "metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}
    )
    return Message(content=content, metadata=metadata(BAD))


def no_arrays() -> Message:
    return Message(
        content=RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}), metadata=metadata(BAD)
    )


GOOD_BYTES = write_npy(np.zeros((4, 3), np.float32))
HUGE = npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }")
OBJECT = npy_with_header("{'descr': '|O', 'fortran_order': False, 'shape': (8,), }")
NEGATIVE = npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -4), }")
EVIL = npy_with_header("__import__('os').system('true')")

FAULTS: dict[str, tuple[Any, str]] = {
    "nan": (nan, "NaN"),
    "infinite": (lambda: reply(BAD, changed(conv__bias=np.full(4, np.inf, np.float32))), "inf"),
    "overflowing": (lambda: reply(BAD, changed(conv__bias=np.full(4, 1e30, np.float32))), "conv.bias"),
    "wrong shape": (lambda: reply(BAD, changed(conv__weight=np.zeros((3, 4), np.float32))), "conv.weight"),
    "wrong dtype: text": (lambda: reply(BAD, changed(conv__weight=np.full((4, 3), "x"))), "conv.weight"),
    "wrong dtype: integers": (lambda: reply(BAD, changed(conv__weight=np.zeros((4, 3), np.int32))), "conv.weight"),
    "wrong dtype: complex": (lambda: reply(BAD, changed(conv__weight=np.zeros((4, 3), np.complex64))), "conv.weight"),
    "wrong dtype: float counter": (lambda: reply(BAD, changed(bn__num_batches_tracked=np.array(7.0))), "num_batches"),
    "foreign byte order": (lambda: reply(BAD, changed(conv__bias=np.zeros(4, ">f4"))), "byte order"),
    "renamed": (renamed, "conv.weight"),
    "extra": (lambda: reply(BAD, changed(backdoor=np.zeros(3, np.float32))), "backdoor"),
    "missing": (missing, "conv.bias"),
    "no array record": (no_arrays, "0 array records"),
    "two array records": (two_records, "2 array records"),
    "empty record": (lambda: reply(BAD, ArrayRecord()), "no arrays"),
    "declared shape": (
        lambda: reply(BAD, with_array("conv.weight", Array("float32", (400, 3), "numpy.ndarray", GOOD_BYTES))),
        "declares float32 (400, 3)",
    ),
    "declared dtype": (
        lambda: reply(BAD, with_array("conv.weight", Array("int8", (4, 3), "numpy.ndarray", GOOD_BYTES))),
        "declares int8",
    ),
    "unknown serialisation": (
        lambda: reply(BAD, with_array("conv.weight", Array("float32", (4, 3), "pickle", GOOD_BYTES))),
        "serialised as 'pickle'",
    ),
    "garbage bytes": (
        lambda: reply(BAD, with_array("conv.weight", Array("float32", (4, 3), "numpy.ndarray", b"\x80\x04K\x2a."))),
        "no readable header",
    ),
    "truncated bytes": (
        lambda: reply(BAD, with_array("conv.weight", Array("float32", (4, 3), "numpy.ndarray", GOOD_BYTES[:-4]))),
        "44 bytes were sent",
    ),
    "empty bytes": (
        lambda: reply(BAD, with_array("conv.weight", Array("float32", (4, 3), "numpy.ndarray", b""))),
        "no readable header",
    ),
    "absurd header": (
        lambda: reply(BAD, with_array("conv.weight", Array("float32", (10**12,), "numpy.ndarray", HUGE))),
        "claims shape (1000000000000,)",
    ),
    "negative header": (
        lambda: reply(BAD, with_array("conv.weight", Array("float32", (-4, -4), "numpy.ndarray", NEGATIVE))),
        "impossible shape",
    ),
    "pickled objects": (
        lambda: reply(BAD, with_array("conv.weight", Array("object", (8,), "numpy.ndarray", OBJECT))),
        "not numbers",
    ),
    "code in the header": (
        lambda: reply(BAD, with_array("conv.weight", Array("float32", (4, 3), "numpy.ndarray", EVIL))),
        "no readable header",
    ),
    "extra metric key": (
        lambda: reply(BAD, update(BAD), {"num-examples": 100, "loss": 0.1, "vote": 3}),
        "extra key 'vote'",
    ),
    "missing metric key": (lambda: reply(BAD, update(BAD), {"num-examples": 100}), "lack the key 'loss'"),
    "metric of another kind": (lambda: reply(BAD, update(BAD), {"num-examples": 100, "loss": [0.1, 0.2]}), "'loss'"),
    "no num-examples": (lambda: reply(BAD, update(BAD), {"loss": 0.1}), "reports None examples"),
    "negative num-examples": (lambda: reply(BAD, update(BAD), {"num-examples": -1, "loss": 0.1}), "reports -1"),
    "nan num-examples": (lambda: reply(BAD, update(BAD), {"num-examples": float("nan"), "loss": 0.1}), "reports nan"),
    "infinite num-examples": (lambda: reply(BAD, update(BAD), {"num-examples": np.inf, "loss": 0.1}), "reports inf"),
    "huge num-examples": (lambda: reply(BAD, update(BAD), {"num-examples": 10**9, "loss": 0.1}), "times the median"),
    "list of num-examples": (lambda: reply(BAD, update(BAD), {"num-examples": [1, 2], "loss": 0.1}), "reports [1, 2]"),
    "error reply": (lambda: failed(BAD), "error 0: RuntimeError: out of disk"),
}  # fmt: skip


def values(arrays: ArrayRecord | None) -> dict[str, np.ndarray]:
    assert arrays is not None
    return {name: array.numpy() for name, array in arrays.items()}


def distance(arrays: dict[str, np.ndarray], centre: float = 1.0) -> float:
    return max(float(np.abs(arrays[name] - centre).max()) for name in MODEL)


@pytest.mark.parametrize("reference", [False, True], ids=["layout by majority", "layout of the global model"])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_reply_costs_its_client_the_vote_and_nobody_the_round(
    fault: str, reference: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make, words = FAULTS[fault]
    good, strategy = honest(6), RobustFedAvg(rule=Mean())
    if reference:
        strategy.configure_train(
            1, record(model()), ConfigRecord(), grid(m.metadata.src_node_id for m in [*good, make()])
        )
    with caplog.at_level(logging.WARNING, logger="flwr"):
        arrays, metrics = strategy.aggregate_train(1, [*good[:3], make(), *good[3:]])
    assert list(strategy.excluded) == [BAD]
    assert words in strategy.excluded[BAD]
    assert any(str(BAD) in message and words in message for message in caplog.messages)
    expected, _ = RobustFedAvg(rule=Mean()).aggregate_train(1, good)
    for name, array in values(expected).items():
        np.testing.assert_array_equal(values(arrays)[name], array)
    assert metrics is not None
    assert metrics[f"refused/{BAD}"] == 1
    assert not strategy.history[-1].kept


@pytest.mark.parametrize("fault", ["wrong shape", "renamed", "extra metric key", "two array records", "absurd header"])
def test_the_same_reply_ends_fedavg(fault: str) -> None:
    """The faults above are real ones: Flower's own FedAvg raises on them."""
    with pytest.raises((ValueError, MemoryError, InconsistentMessageReplies)):
        FedAvg().aggregate_train(1, [*honest(6), FAULTS[fault][0]()])


def grid(nodes: Any) -> Mock:
    nodes = list(dict.fromkeys(nodes))
    return Mock(get_node_ids=Mock(return_value=nodes))


def test_a_duplicate_costs_its_client_the_vote() -> None:
    good = honest(6)
    strategy = RobustFedAvg(rule=Mean())
    arrays, _ = strategy.aggregate_train(1, [*good, reply(BAD, update(BAD)), reply(BAD, update(BAD, seed=1))])
    assert strategy.excluded == {BAD: "sent 2 replies in one round"}
    expected, _ = RobustFedAvg(rule=Mean()).aggregate_train(1, good)
    np.testing.assert_array_equal(values(arrays)["conv.weight"], values(expected)["conv.weight"])


def test_liars_are_named_and_the_model_is_the_honest_one() -> None:
    good = honest(7)
    liars = [lying(BAD + k) for k in range(3)]
    strategy = RobustFedAvg()
    arrays, metrics = strategy.aggregate_train(1, [liars[0], *good, *liars[1:]])
    assert strategy.history[-1].accused == (BAD, BAD + 1, BAD + 2)
    assert strategy.honesty is not None
    assert metrics is not None
    assert all(metrics[f"honesty/{BAD + k}"] == strategy.honesty[BAD + k] < 0.01 for k in range(3))
    assert all(strategy.honesty[m.metadata.src_node_id] > 0.5 for m in good)
    assert 2.5 < metrics["malicious"] < 4
    mean, _ = FedAvg().aggregate_train(1, copy.deepcopy([liars[0], *good, *liars[1:]]))
    assert distance(values(arrays)) < 0.3 < 1 < distance(values(mean))


def test_reply_order_does_not_matter() -> None:
    replies = [*honest(8), nan()]
    shuffled = random.Random(3).sample(replies, len(replies))
    results = [values(RobustFedAvg().aggregate_train(1, each)[0]) for each in (replies, shuffled)]
    np.testing.assert_allclose(results[0]["conv.weight"], results[1]["conv.weight"], rtol=1e-5)


@pytest.mark.parametrize("rule", [Mean(), Median(), Krum(f=2), MultiKrum(f=2, keep=4), "bayesian", "geometric_median"])
def test_any_rule_works(rule: Any) -> None:
    arrays, _ = RobustFedAvg(rule=rule).aggregate_train(1, [*honest(8), nan()])
    assert distance(values(arrays)) < 0.7
    assert values(arrays)["bn.num_batches_tracked"].dtype == np.int64
    assert values(arrays)["bn.num_batches_tracked"] == 7


def test_a_mixer_works() -> None:
    arrays, _ = RobustFedAvg(rule=Median(), pre=NNM(f=2)).aggregate_train(1, [*honest(8), nan()])
    assert distance(values(arrays)) < 0.5


def test_replies_are_not_changed() -> None:
    replies = [*honest(6), nan(), reply(BAD + 1, update(BAD), {"num-examples": 100, "loss": 1.0, "extra": 2})]
    before = [(dict(m.content["metrics"]), {n: a.data for n, a in m.content["arrays"].items()}) for m in replies]
    RobustFedAvg(train_metrics_aggr_fn=_count).aggregate_train(1, replies)
    after = [(dict(m.content["metrics"]), {n: a.data for n, a in m.content["arrays"].items()}) for m in replies]
    assert all(a[1] == b[1] and repr(a[0]) == repr(b[0]) for a, b in zip(before, after, strict=True))


def _count(contents: list[RecordDict], key: str) -> MetricRecord:
    sizes = [content["metrics"][key] for content in contents]
    return MetricRecord({"clients": len(contents), "largest": max(sizes)})


def test_the_users_metrics_function_sees_believed_clients_with_capped_sizes() -> None:
    big = reply(BAD + 1, update(BAD + 1), {"num-examples": 90_000, "loss": 0.1})
    strategy = RobustFedAvg(train_metrics_aggr_fn=_count)
    _, metrics = strategy.aggregate_train(1, [*honest(6), big, nan()])
    assert metrics is not None
    assert metrics["clients"] == 7
    assert metrics["largest"] == 3 * 103  # three times the median of 100..105 and 90,000


def test_a_metrics_function_that_fails_does_not_end_the_round() -> None:
    def broken(contents: list[RecordDict], key: str) -> MetricRecord:
        raise KeyError("f1")

    arrays, metrics = RobustFedAvg(train_metrics_aggr_fn=broken).aggregate_train(1, honest(6))
    assert arrays is not None
    assert metrics is not None
    assert metrics["loss"] == pytest.approx(0.25, abs=0.06)


def test_counters_keep_their_type_and_the_models_dtype_decides() -> None:
    doubles = [
        reply(BAD + k, {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in update(BAD + k).items()})
        for k in range(5)
    ]
    good = honest(4)
    strategy = RobustFedAvg(rule=Mean())
    strategy.configure_train(
        1, record(model()), ConfigRecord(), grid(m.metadata.src_node_id for m in [*good, *doubles])
    )
    arrays, _ = strategy.aggregate_train(1, [*good, *doubles])
    assert {name: array.dtype for name, array in values(arrays).items()} == {
        name: array.dtype for name, array in model().items()
    }
    assert not strategy.excluded


def test_arrays_come_back_in_the_order_of_the_global_model() -> None:
    """`to_numpy_ndarrays` goes by position: a client who sends the same names in another order must not decide it."""
    strategy = RobustFedAvg(rule=Mean())
    scrambled = reply(BAD, dict(reversed(update(BAD).items())))
    good = honest(5)
    strategy.configure_train(1, record(model()), ConfigRecord(), grid([BAD, *(m.metadata.src_node_id for m in good)]))
    arrays, _ = strategy.aggregate_train(1, [scrambled, *good])
    assert arrays is not None
    assert list(arrays) == list(model())


def test_fortran_order_and_odd_headers_are_read_right() -> None:
    good = honest(4)
    arrays = update(BAD)
    twin = record(arrays)
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(arrays["conv.weight"]))
    twin["conv.weight"] = Array("float32", (4, 3), "numpy.ndarray", buffer.getvalue())
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }\n"  # an unaligned payload
    odd = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + arrays["head.weight"].tobytes()
    twin["head.weight"] = Array("float32", (2, 4), "numpy.ndarray", odd)
    a, _ = RobustFedAvg(rule=Mean()).aggregate_train(1, [*good, reply(BAD, arrays)])
    b, _ = RobustFedAvg(rule=Mean()).aggregate_train(1, [*good, reply(BAD, twin)])
    for name in values(a):
        np.testing.assert_array_equal(values(a)[name], values(b)[name])


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


def test_doubt_keeps_the_old_model_if_asked_to() -> None:
    """Five clients, two of them liars: the rule keeps the smallest majority and says so."""
    rng = np.random.default_rng(5)
    noisy = {n: v + rng.normal(scale=9, size=v.shape).astype(v.dtype) for n, v in update(BAD).items()}
    two = [reply(BAD, noisy), lying(BAD + 1)]
    doubtful = RobustFedAvg(doubt="keep")
    arrays, _ = doubtful.aggregate_train(1, [*honest(3), *two])
    assert doubtful.history[-1].attention
    assert arrays is None
    assert "close to half" in doubtful.history[-1].status
    assert RobustFedAvg(doubt="accept").aggregate_train(1, [*honest(3), *two])[0] is not None


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


def test_one_liar_does_not_set_the_reported_loss() -> None:
    liar = reply(BAD, update(BAD), {"num-examples": 100_000, "loss": -1e9})
    _, metrics = RobustFedAvg().aggregate_train(1, [*honest(7), liar])
    assert metrics is not None
    assert 0.0 <= metrics["loss"] <= 0.6
    strategy = RobustFedAvg()
    evaluation = strategy.aggregate_evaluate(1, [*honest(7), liar, failed(BAD + 1)])
    assert evaluation is not None
    assert 0.0 <= evaluation["loss"] <= 0.6
    fedavg = FedAvg().aggregate_evaluate(1, [*honest(7), liar])
    assert fedavg is not None
    assert fedavg["loss"] < -1e8


def test_evaluation_counts_clients_as_much_as_they_were_believed() -> None:
    good = honest(5)
    liars = [lying(BAD + k) for k in range(4)]
    strategy = RobustFedAvg()
    strategy.aggregate_train(1, [*good, *liars])
    reports = [reply(m.metadata.src_node_id, ArrayRecord(), {"num-examples": 1, "accuracy": 0.9}) for m in good]
    lies = [reply(m.metadata.src_node_id, ArrayRecord(), {"num-examples": 1, "accuracy": 0.0}) for m in liars]
    new = [reply(BAD + 40 + k, ArrayRecord(), {"num-examples": 1, "accuracy": 0.0}) for k in range(3)]
    evaluation = strategy.aggregate_evaluate(1, [*reports, *lies, *new])
    assert evaluation == {"accuracy": 0.9}
    assert strategy.history[-1].evaluation == {"accuracy": 0.9}
    assert strategy.aggregate_evaluate(2, []) is None


def test_history_is_on_disk_after_every_round(tmp_path: Path) -> None:
    strategy = RobustFedAvg(history=tmp_path / "run")
    strategy.aggregate_train(1, [*honest(6), nan()])
    strategy.aggregate_train(2, [*honest(7)[1:], failed(BAD)])
    strategy.aggregate_evaluate(2, [reply(FIRST_NODE + 1, ArrayRecord(), {"num-examples": 1, "accuracy": 0.75})])
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    roster = lines[0]["clients"]
    assert roster == lines[1]["clients"]
    assert str(BAD) in roster
    assert lines[1]["accuracy"] == 0.75
    assert lines[0]["reasons"] == {str(BAD): strategy.history[0].excluded[BAD]}
    assert lines[1]["honesty"][roster.index(str(FIRST_NODE))] is None  # not part of round 2
    assert lines[0]["honesty"][roster.index(str(BAD))] == 0.0
    rows = (tmp_path / "run" / "rounds.csv").read_text().splitlines()
    assert rows[0] == "round,client,honesty,weight,excluded,kept,status"
    assert len(rows) == 1 + 7 + 7
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["rounds.csv", "rounds.jsonl"]


def test_memory_beyond_the_replies_stays_under_three_models() -> None:
    """Measured at scale, against Flower's own, by benchmarks/flower_memory.py."""
    layers = {"a": 300_000, "b": 600_000, "c": 100_000}
    rng = np.random.default_rng(0)
    replies = [
        reply(BAD + k, {name: rng.normal(size=n).astype(np.float32) for name, n in layers.items()}) for k in range(12)
    ]
    strategy = RobustFedAvg()
    strategy.aggregate_train(1, replies)  # what is loaded on first use is not the round's
    tracemalloc.start()
    try:
        arrays, _ = strategy.aggregate_train(2, replies)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert arrays is not None
    assert peak < 3 * 4 * sum(layers.values())


def test_fedavgs_keywords_are_kept() -> None:
    strategy = RobustFedAvg(fraction_train=0.3, min_available_nodes=7, weighted_by_key="n", arrayrecord_key="w")
    assert (strategy.fraction_train, strategy.min_available_nodes, strategy.weighted_by_key) == (0.3, 7, "n")
    with pytest.raises(TypeError):
        RobustFedAvg(fraction_fit=0.3)
    with pytest.raises(ValueError, match="rule"):
        RobustFedAvg(rule=3)  # type: ignore[arg-type]
