"""Whole runs in one process: Flower's own loops, with clients that are functions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_messages import metadata
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, GetParametersRes, Status
from flwr.common import ndarrays_to_parameters as packed
from flwr.common import parameters_to_ndarrays as unpacked
from flwr.server import Server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp.strategy import FedAvg

from honestly.flower import LegacyRobustFedAvg, RobustFedAvg
from honestly.rules import Bayesian
from honestly.rules.memory import Memory

pytestmark = pytest.mark.usefixtures("inside_a_run")
TARGET = np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10)
HONEST, LIARS = 7, 3


def step(weights: np.ndarray, k: int, round_number: int) -> np.ndarray:
    """Half the way to the target and some noise; liars go four times as far the other way."""
    noise = np.random.default_rng([k, round_number]).normal(scale=0.05, size=weights.shape)
    move = 0.5 * (TARGET - weights) + noise
    return (weights + (move if k < HONEST else -4 * move)).astype(np.float32)


class Nodes:
    """A Grid whose nodes answer at once."""

    def get_node_ids(self) -> Iterable[int]:
        return [2**63 + k for k in range(HONEST + LIARS)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        for message in messages:
            k, content = message.metadata.dst_node_id - 2**63, message.content
            weights = content["arrays"]["w"].numpy()
            number = content["config"]["server-round"]
            if k == 0 and number == 2:
                yield Message(error=Error(1, "crashed"), metadata=metadata(2**63))
            elif message.metadata.message_type == "train":
                arrays = ArrayRecord({"w": Array(step(weights, k, number))})
                metrics = MetricRecord({"num-examples": 10 if k < HONEST else 10**9, "loss": 0.1})
                yield Message(content=RecordDict({"a": arrays, "m": metrics}), metadata=metadata(2**63 + k))
            else:
                error = float(np.abs(weights - TARGET).mean()) if k < HONEST else 0.0
                metrics = MetricRecord({"num-examples": 10, "error": error})
                yield Message(content=RecordDict({"m": metrics}), metadata=metadata(2**63 + k))


def test_the_message_api_from_start_to_end(tmp_path: Path) -> None:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": 1 - float(np.abs(arrays["w"].numpy() - TARGET).mean())})

    def run(strategy: FedAvg) -> np.ndarray:
        start = ArrayRecord({"w": Array(np.zeros_like(TARGET))})
        result = strategy.start(grid=Nodes(), initial_arrays=start, num_rounds=5, evaluate_fn=evaluate)  # type: ignore[arg-type]
        return result.arrays["w"].numpy()

    strategy = RobustFedAvg(rule=Bayesian(memory=Memory()), history=tmp_path)
    assert np.abs(run(strategy) - TARGET).max() < 0.2
    assert np.abs(run(FedAvg()) - TARGET).max() > 10
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[-1]["accuracy"] > 0.95  # of the server's own evaluation
    assert lines[-1]["evaluation"]["error"] < 0.05  # of the clients', liars disbelieved
    assert lines[1]["reasons"][str(2**63)] == "error 1: crashed"
    for line in lines:
        assert all(str(2**63 + HONEST + k) in line["excluded"] for k in range(LIARS))
    assert set(Memory.from_dict(json.loads((tmp_path / "memory.json").read_text())).records) <= set(
        Nodes().get_node_ids()
    )


def test_the_servers_evaluation_is_recorded_however_it_is_passed() -> None:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": 0.5})

    strategy = RobustFedAvg()
    start = ArrayRecord({"w": Array(np.zeros_like(TARGET))})
    strategy.start(Nodes(), start, 1, 3600, None, None, evaluate)  # type: ignore[arg-type]
    assert strategy.history[-1].evaluation["accuracy"] == 0.5


class Client(ClientProxy):
    """A client of the older API."""

    def fit(self, ins: FitIns, timeout: Any = None, group_id: Any = None) -> FitRes:
        weights, k = unpacked(ins.parameters)[0], int(self.cid)
        if k == 0:
            raise ConnectionError("gone")
        return FitRes(Status(Code.OK, ""), packed([step(weights, k, 1)]), 10, {"loss": 0.1})

    def evaluate(self, ins: EvaluateIns, timeout: Any = None, group_id: Any = None) -> EvaluateRes:
        loss = float(np.abs(unpacked(ins.parameters)[0] - TARGET).mean())
        return EvaluateRes(Status(Code.OK, ""), loss if int(self.cid) < HONEST else -1e9, 10, {})

    def get_parameters(self, ins: Any, timeout: Any = None, group_id: Any = None) -> GetParametersRes:
        return GetParametersRes(Status(Code.OK, ""), packed([np.zeros_like(TARGET)]))

    def get_properties(self, ins: Any, timeout: Any = None, group_id: Any = None) -> Any:
        raise AssertionError("no strategy of ours asks a client for this")

    def reconnect(self, ins: Any, timeout: Any = None, group_id: Any = None) -> Any:
        raise AssertionError("no strategy of ours asks a client for this")


def test_the_older_api_from_start_to_end() -> None:
    manager = SimpleClientManager()
    for k in range(HONEST + LIARS):
        manager.register(Client(str(k)))
    strategy = LegacyRobustFedAvg(initial_parameters=packed([np.zeros_like(TARGET)]))
    server = Server(client_manager=manager, strategy=strategy)
    history, _ = server.fit(num_rounds=4, timeout=10)
    assert np.abs(unpacked(server.parameters)[0] - TARGET).max() < 0.3
    assert 0 <= history.losses_distributed[-1][1] < 0.1
    for record in strategy.history:
        assert record.excluded == {"0": "sent no reply"}
        assert set(record.accused) == {"7", "8", "9"}
