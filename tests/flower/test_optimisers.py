"""Flower's server optimisers over the robust average, on real messages."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_messages import BAD, FIRST_NODE, MODEL, grid, honest, lying, model, nan, record, values
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi

from honestly import flower
from honestly.federation.server import STEPS, make_server
from honestly.rules import Mean

pytestmark = pytest.mark.usefixtures("inside_a_run")

PAIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "adam": (flower.RobustFedAdam, FedAdam, {"eta": 0.05}),
    "yogi": (flower.RobustFedYogi, FedYogi, {}),
    "adagrad": (flower.RobustFedAdagrad, FedAdagrad, {}),
    "momentum": (flower.RobustFedAvgM, FedAvgM, {"server_momentum": 0.9, "server_learning_rate": 0.5}),
}
STEP = {"adam": "fedadam:lr=0.05", "yogi": "fedyogi", "adagrad": "fedadagrad", "momentum": "fedavgm:lr=0.5"}


def move(replies: list[Message], start: dict[str, np.ndarray]) -> list[Message]:
    """Replies of clients that start from another model: their steps are the same."""
    for message in replies:
        arrays = next(iter(message.content.array_records.values()))
        for name in MODEL:
            arrays[name] = Array(arrays[name].numpy() + start[name])
    return replies


def play(strategy: Any, rounds: int, *, first: int = 1, start: ArrayRecord | None = None, liars: int = 0) -> Any:
    """The model after some rounds, in which everybody wants to move by 1."""
    arrays = record(model()) if start is None else start
    nodes = [FIRST_NODE + k for k in range(8)] + [BAD + k for k in range(liars)]
    for number in range(first, first + rounds):
        sent = list(strategy.configure_train(number, arrays, ConfigRecord(), grid(nodes)))
        assert sent
        replies = move(honest(8), values(arrays)) + move([lying(BAD + k) for k in range(liars)], values(arrays))
        new, _ = strategy.aggregate_train(number, replies)
        arrays = arrays if new is None else new
    return arrays


@pytest.mark.parametrize("name", PAIRS)
def test_with_the_mean_it_equals_flowers_strategy(name: str) -> None:
    robust, own, settings = PAIRS[name]
    found = values(play(robust(rule=Mean(sizes="trusted"), **settings), 4))
    expected = values(play(own(**settings), 4))
    for tensor in MODEL:
        np.testing.assert_allclose(found[tensor], expected[tensor], rtol=1e-5, atol=1e-6)
        assert found[tensor].dtype == np.float32
    assert found["bn.num_batches_tracked"].dtype == np.int64
    assert found["bn.num_batches_tracked"] == 7


@pytest.mark.parametrize("name", PAIRS)
def test_the_step_without_flower_is_the_same(name: str) -> None:
    _, own, settings = PAIRS[name]
    expected = values(play(own(**settings), 4))
    step, old = make_server(STEP[name]), model()
    assert step is not None
    for _ in range(4):
        replies = [values(next(iter(m.content.array_records.values()))) for m in move(honest(8), old)]
        sizes = [100 + k for k in range(8)]
        mean = {n: np.average([r[n] for r in replies], axis=0, weights=sizes).astype("f4") for n in MODEL}
        old = step.next(old, mean) | {"bn.num_batches_tracked": old["bn.num_batches_tracked"]}
    for tensor in MODEL:
        np.testing.assert_allclose(old[tensor], expected[tensor], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_liars_do_not_change_the_model(name: str) -> None:
    robust, own, settings = PAIRS[name]
    strategy = robust(**settings)
    attacked = values(play(strategy, 5, liars=3))
    assert set(strategy.history[-1].accused) == {BAD, BAD + 1, BAD + 2}
    clean = values(play(robust(**settings), 5))
    lost = values(play(own(**settings), 5, liars=3))
    for tensor in MODEL:
        assert np.abs(attacked[tensor] - clean[tensor]).max() < 0.5 * np.abs(clean[tensor]).max()
        assert attacked[tensor].min() > 0
    assert min(lost[tensor].min() for tensor in MODEL) < 0  # without a robust average the liars decide


def test_a_round_that_keeps_the_old_model_keeps_the_moments() -> None:
    strategy = flower.RobustFedAdam()
    arrays = play(strategy, 2)
    before = copy.deepcopy(strategy.m_t)
    list(strategy.configure_train(3, arrays, ConfigRecord(), grid([FIRST_NODE, BAD])))
    kept, _ = strategy.aggregate_train(3, [nan()])
    assert kept is None
    assert before is not None
    assert strategy.m_t is not None
    for tensor in MODEL:
        np.testing.assert_array_equal(before[tensor], strategy.m_t[tensor])


@pytest.mark.parametrize("name", ["yogi", "adagrad", "momentum"])
def test_moments_survive_a_restart(name: str, tmp_path: Path) -> None:
    robust, _, settings = PAIRS[name]
    whole = values(play(robust(**settings), 5))
    half = play(robust(history=tmp_path, **settings), 3)
    again = values(play(robust(history=tmp_path, **settings), 2, start=half))
    fresh = values(play(robust(**settings), 2, start=half))
    half = play(robust(history=tmp_path / "ordered", **settings), 3)
    reordered = ArrayRecord({name: half[name] for name in reversed(list(half))})  # as a file may give them back
    also = values(play(robust(history=tmp_path / "ordered", **settings), 2, start=reordered))
    for tensor in MODEL:
        np.testing.assert_allclose(again[tensor], whole[tensor], rtol=1e-5)
        np.testing.assert_allclose(also[tensor], whole[tensor], rtol=1e-5)
    assert any(np.abs(fresh[tensor] - whole[tensor]).max() > 1e-4 for tensor in MODEL)
    # another model in the same folder is another federation
    other = values(play(robust(history=tmp_path, **settings), 2))
    expected = values(play(robust(**settings), 2))
    for tensor in MODEL:
        np.testing.assert_array_equal(other[tensor], expected[tensor])


def test_statistics_of_batchnorm_are_not_optimised() -> None:
    strategy = flower.RobustFedAdam(eta=1.0)
    start = model() | {"bn.running_var": np.full(4, 0.01, np.float32)}
    list(strategy.configure_train(1, record(start), ConfigRecord(), grid([FIRST_NODE + k for k in range(8)])))
    replies = honest(8)
    for message in replies:
        arrays = next(iter(message.content.array_records.values()))
        arrays["bn.running_var"] = Array(np.full(4, 0.005, np.float32))
    arrays, _ = strategy.aggregate_train(1, replies)
    np.testing.assert_allclose(values(arrays)["bn.running_var"], 0.005, rtol=1e-6)


def test_proximal_mu_is_sent() -> None:
    strategy = flower.RobustFedProx(proximal_mu=0.25, rule="median")
    messages = list(
        strategy.configure_train(1, record(model()), ConfigRecord(), grid([FIRST_NODE + k for k in range(8)]))
    )
    assert all(message.content["config"]["proximal-mu"] == 0.25 for message in messages)  # type: ignore[index]
    arrays, metrics = strategy.aggregate_train(1, honest(8))
    assert np.abs(values(arrays)["conv.weight"] - 1).max() < 0.5
    assert metrics is not None
    assert metrics["kept-old-model"] == 0


def test_settings_are_flowers_and_ours() -> None:
    strategy = flower.RobustFedAdam(rule="median", eta=0.3, beta_1=0.5, quorum=0.7, fraction_train=0.5)
    assert (strategy.eta, strategy.beta_1, strategy.fraction_train) == (0.3, 0.5, 0.5)
    assert str(strategy.rule) == "Median()"
    strategy.summary()
    with pytest.raises(TypeError):
        flower.RobustFedAdam(nonsense=1)
    assert set(STEPS) == {"fedadam", "fedyogi", "fedadagrad", "fedavgm"}
