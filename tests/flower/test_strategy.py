"""RobustFedAvg on real Message objects: who is believed, what comes back, metrics, history and memory."""

from __future__ import annotations

import copy
import io
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_messages import (
    BAD,
    FIRST_NODE,
    distance,
    failed,
    grid,
    honest,
    lying,
    model,
    nan,
    record,
    reply,
    update,
    values,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from honestly.flower import RobustFedAvg
from honestly.rules import Krum, Mean, Median, MultiKrum
from honestly.rules.nnm import NNM

pytestmark = pytest.mark.usefixtures("inside_a_run")


def test_a_duplicate_reply_excludes_its_client() -> None:
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


def test_names_in_metrics_and_history(tmp_path: Path) -> None:
    strategy = RobustFedAvg(names={BAD: "Uppsala"}, history=tmp_path)
    _, metrics = strategy.aggregate_train(1, [*honest(6), nan()])
    assert metrics is not None
    assert metrics["refused/Uppsala"] == 1
    assert metrics[f"honesty/{FIRST_NODE}"] > 0.5
    assert strategy.excluded.keys() == {BAD}
    assert json.loads((tmp_path / "rounds.jsonl").read_text())["excluded"] == ["Uppsala"]


def test_sizes_are_used_up_to_a_cap(tmp_path: Path) -> None:
    replies = [reply(FIRST_NODE + k, update(k), {"num-examples": 100, "loss": 0.1}) for k in range(7)]
    replies += [reply(FIRST_NODE + 7, update(7), {"num-examples": 5, "loss": 0.1})]
    replies += [reply(BAD, update(8), {"num-examples": 500_000, "loss": 0.1})]
    strategy = RobustFedAvg(history=tmp_path)
    strategy.aggregate_train(1, replies)
    used, claimed = strategy.history[-1].used, strategy.history[-1].claimed
    assert used is not None
    assert claimed is not None
    assert claimed[BAD] > 0.99
    assert used[BAD] <= 3 * used[FIRST_NODE]
    assert used[FIRST_NODE + 7] == pytest.approx(used[FIRST_NODE] / 20)
    weights = strategy.history[-1].weights
    assert weights is not None
    assert weights[FIRST_NODE + 7] < 0.2 * weights[FIRST_NODE]
    line = json.loads((tmp_path / "rounds.jsonl").read_text())
    assert line["used"][line["clients"].index(str(BAD))] == used[BAD]
    heads = RobustFedAvg(sizes="ignore")
    heads.aggregate_train(1, replies)
    assert heads.history[-1].used is None
    assert heads.history[-1].weights is not None
    assert heads.history[-1].weights[FIRST_NODE + 7] > 0.05
    with pytest.raises(ValueError, match="sizes='many'"):
        RobustFedAvg(sizes="many")  # type: ignore[arg-type]


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


def test_mixers_work() -> None:
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


@pytest.mark.parametrize("found", [{"loss": np.float32(0.5)}, {"loss": None}, {"note": "fine"}, None])
def test_a_metrics_function_whose_result_is_no_record_does_not_end_the_run(found: Any) -> None:
    strategy = RobustFedAvg(train_metrics_aggr_fn=lambda *_: found, evaluate_metrics_aggr_fn=lambda *_: found)
    arrays, metrics = strategy.aggregate_train(1, honest(6))
    assert arrays is not None
    assert metrics is not None
    assert metrics["loss"] == strategy.aggregate_evaluate(1, honest(6))["loss"]


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
    assert lines[1]["clients"] == [*roster, str(FIRST_NODE + 6)]  # newcomers do not change the lines of the past
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
