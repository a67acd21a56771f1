"""Differential privacy in Flower with our strategy: what works, what is refused, and what one client can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flower_messages import metadata
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod

from honestly.flower import RobustFedAvg

pytestmark = pytest.mark.usefixtures("inside_a_run")
TARGET = np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10)
HONEST, LIARS, CLIP = 14, 4, 1.0
#: of LocalDpMod: two updates of norm at most CLIP differ by at most twice that
SENSITIVITY = 2 * CLIP


def client(k: int, message: Message) -> Message:
    """Training: half the way to the target; liars go four times as far the other way."""
    weights = message.content["arrays"]["w"].numpy()
    move = 0.5 * (TARGET - weights) + np.random.default_rng(k).normal(scale=0.02, size=weights.shape)
    new = (weights + (move if k < HONEST else -4 * move)).astype(np.float32)
    content = RecordDict({"arrays": ArrayRecord({"w": Array(new)}), "m": MetricRecord({"num-examples": 10})})
    return Message(content=content, metadata=metadata(2**63 + k))


class Nodes:
    """A Grid whose honest nodes run Flower's own privacy modifier; liars run what they like."""

    def __init__(self, mod: Any = None, *, liars: int = LIARS, broken: bool = False) -> None:
        self.mod, self.liars, self.broken = mod, liars, broken

    def get_node_ids(self) -> Iterable[int]:
        return [2**63 + k for k in range(HONEST + self.liars)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        for message in messages:
            k = message.metadata.dst_node_id - 2**63
            if message.metadata.message_type != "train":
                yield Message(
                    content=RecordDict({"m": MetricRecord({"num-examples": 10})}), metadata=metadata(2**63 + k)
                )
            elif self.broken and k == HONEST:
                yield Message(error=Error(1, "on purpose"), metadata=metadata(2**63 + k))
            elif self.mod is None or k >= HONEST:
                yield client(k, message)
            else:
                yield self.mod(message, None, lambda msg, _, k=k: client(k, msg))


def run(strategy: Any, nodes: Nodes, rounds: int = 6) -> np.ndarray:
    start = ArrayRecord({"w": Array(np.zeros_like(TARGET))})
    return strategy.start(grid=nodes, initial_arrays=start, num_rounds=rounds).arrays["w"].numpy()


def away(model: np.ndarray) -> float:
    """The distance from the target, as a share of where training began."""
    return float(np.linalg.norm(model - TARGET) / np.linalg.norm(TARGET))


def test_clipping_and_noise_at_the_clients_leave_the_liars_visible() -> None:
    mod = LocalDpMod(CLIP, SENSITIVITY, epsilon=80.0, delta=1e-5)  # 0.12 of noise a coordinate, 0.9 a client
    strategy = RobustFedAvg()
    assert away(run(strategy, Nodes(mod))) < 0.4
    accused = [set(record.accused) for record in strategy.history]
    assert all(found == {2**63 + HONEST + k for k in range(LIARS)} for found in accused[:3])
    assert away(run(FedAvg(), Nodes(mod))) > 1.0


def test_more_noise_than_signal_hides_everybody() -> None:
    """The rule's error is measured in honest variances, and the noise is part of these."""
    mod = LocalDpMod(CLIP, SENSITIVITY, epsilon=2.0, delta=1e-5)  # 4.8 a coordinate, 37 a client
    strategy = RobustFedAvg()
    assert away(run(strategy, Nodes(mod), rounds=3)) > 1.0


def test_the_accountant_refuses_any_average_but_the_plain_mean() -> None:
    config = PrivacyConfig(1e-5, HONEST + LIARS, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = Mock(config=config)  # Flower's own needs one more package, and is not asked anything else
    DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, CLIP, HONEST + LIARS, accountant=accountant)
    for wrapper in (DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping):
        with pytest.raises(ValueError, match=r"FedAvg\.aggregate_train"):
            wrapper(RobustFedAvg(), 1.0, CLIP, HONEST + LIARS, accountant=accountant)


def test_the_wrappers_run_without_an_accountant() -> None:
    strategy = RobustFedAvg()
    wrapped = DifferentialPrivacyClientSideFixedClipping(strategy, 0.5, CLIP, HONEST + LIARS)
    assert away(run(wrapped, Nodes(fixedclipping_mod))) < 0.6
    assert strategy.history[0].accused
    strategy = RobustFedAvg()
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.5, CLIP, HONEST + LIARS)
    assert away(run(wrapped, Nodes())) < 0.6


def test_one_error_stops_the_wrappers_and_not_our_strategy() -> None:
    """Flower's wrappers skip a round in which a single client reports an error: any client can stop the training."""
    wrapped = DifferentialPrivacyClientSideFixedClipping(RobustFedAvg(), 0.5, CLIP, HONEST + LIARS)
    start = ArrayRecord({"w": Array(np.zeros_like(TARGET))})
    result = wrapped.start(grid=Nodes(fixedclipping_mod, broken=True), initial_arrays=start, num_rounds=3)  # type: ignore[arg-type]
    assert not result.arrays  # no round has given a model
    mod = LocalDpMod(CLIP, SENSITIVITY, epsilon=80.0, delta=1e-5)
    assert away(run(RobustFedAvg(), Nodes(mod, broken=True))) < 0.4


def test_one_client_can_move_a_robust_average_by_more_than_its_share() -> None:
    """Why noise for a mean is too little: the mean moves by at most 2 C / n, a rule that chooses may move by more."""
    import honestly as hn

    rng = np.random.default_rng(0)
    updates = rng.normal(size=(10, 40))
    updates = CLIP * updates / np.linalg.norm(updates, axis=1, keepdims=True)
    moved: dict[str, float] = {}
    for rule in ("mean", "krum"):
        made = hn.Krum(f=2) if rule == "krum" else rule
        before = hn.aggregate(updates, made).value
        steps = []
        for k in range(10):
            for other in range(10):
                changed = updates.copy()
                changed[k] = updates[other]
                steps.append(np.linalg.norm(hn.aggregate(changed, made).value - before))
        moved[rule] = float(max(steps))
    assert moved["mean"] <= 2 * CLIP / 10 + 1e-9
    assert moved["krum"] > 3 * 2 * CLIP / 10
