"""Training without rounds over Flower's grid: slow nodes, liars, nodes that vanish, answers in others' names."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, Metadata, MetricRecord, RecordDict

import honestly as hn
from honestly.federation.audit import audit
from honestly.federation.shelf import Shelf
from honestly.flower import train_buffered

pytestmark = pytest.mark.usefixtures("inside_a_run")
TARGET = np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10)
FIRST = 2**63
SUPERLINK = 1


def metadata(node: int, message_id: str) -> Metadata:
    return Metadata(
        run_id=1, message_id="", src_node_id=node, dst_node_id=1, reply_to_message_id=message_id, group_id="",
        created_at=0.0, ttl=10.0, message_type="train",
    )  # fmt: skip


@dataclass
class Slow:
    """A grid whose nodes answer after some looks, each at its own pace."""

    honest: int = 12
    liars: int = 4
    crashing: int = 0
    silent: int = 0
    thief: bool = False
    forgets: bool = False
    leaving: int = 0  # messages that Flower could not store, because their node is gone
    restarting: int = 0  # of the first messages to each node
    looks: int = 0
    pushed: dict[str, tuple[Message, int]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)

    def get_node_ids(self) -> Iterable[int]:
        return [FIRST + k for k in range(self.honest + self.liars + self.crashing + self.silent)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            k = message.metadata.dst_node_id - FIRST
            if self.forgets:  # Flower drops messages whose time is over; answers to them never come
                self.pushed = {i: p for i, p in self.pushed.items() if p[0].metadata.dst_node_id != FIRST + k}
            assert all(m.metadata.dst_node_id != FIRST + k for m, _ in self.pushed.values()), "asked while it works"
            self.asked[k] = self.asked.get(k, 0) + 1
            identity = f"{k}-{self.asked[k]}"
            self.pushed[identity] = message, 0 if self.forgets else self.looks + 1 + k % 5 * 2
            yield identity
        for _ in range(self.leaving):
            yield ""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.looks += 1
        for identity in list(message_ids):
            message, ready = self.pushed[identity]
            k = message.metadata.dst_node_id - FIRST
            if ready > self.looks or k >= self.honest + self.liars + self.crashing:
                continue
            del self.pushed[identity]
            yield self.answer(message, k, identity)

    def answer(self, message: Message, k: int, identity: str) -> Message:
        if k >= self.honest + self.liars or self.asked[k] <= self.restarting:
            who = SUPERLINK if k % 2 else FIRST + k  # Flower sends the error if it lost the reply
            return Message(error=Error(1, "crashed"), metadata=metadata(who, identity))
        weights = message.content["arrays"]["w"].numpy()
        move = 0.5 * (TARGET - weights) + np.random.default_rng([k, self.asked[k]]).normal(scale=0.05, size=(6, 10))
        lie = k >= self.honest
        new = (weights + (-4 * move if lie else move)).astype(np.float32)
        content = RecordDict({"a": ArrayRecord({"w": Array(new)}), "m": MetricRecord({"num-examples": 10})})
        who = FIRST if self.thief and lie else FIRST + k  # a liar answers as if it were node 0
        return Message(content=content, metadata=metadata(who, identity))


def start() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros_like(TARGET))})


def away(arrays: ArrayRecord) -> float:
    return float(np.abs(arrays["w"].numpy() - TARGET).max())


def test_slow_nodes_and_liars(tmp_path: Path) -> None:
    grid, seen = Slow(), []
    buffer = hn.Buffer(8, folder=tmp_path / "buffer", history=tmp_path / "history")
    result = train_buffered(
        grid, buffer, start(), versions=12, pull_interval=0, on_version=lambda v, a: seen.append((v, away(a)))
    )  # type: ignore[arg-type]
    assert away(result) < 0.3
    assert [version for version, _ in seen] == list(range(1, 13))
    assert seen[-1][1] == away(result)
    assert result["w"].dtype == "float32"
    assert audit(tmp_path / "history").rounds == 12
    counts = [grid.asked[k] for k in range(12)]
    assert max(counts) > min(counts)  # the quick ones worked more often
    plain = train_buffered(Slow(), hn.Buffer(8, "mean"), start(), versions=12, pull_interval=0)  # type: ignore[arg-type]
    assert away(plain) > 0.5


def test_it_resumes_where_it_was_stopped(tmp_path: Path) -> None:
    saved: list[tuple[int, ArrayRecord]] = []
    first = hn.Buffer(8, folder=tmp_path)
    train_buffered(Slow(), first, start(), versions=4, pull_interval=0, on_version=lambda *new: saved.append(new))  # type: ignore[arg-type]
    del first
    version, model = saved[-1]
    again = hn.Buffer(8, folder=tmp_path, version=version)
    assert away(train_buffered(Slow(), again, model, versions=12, pull_interval=0)) < 0.3  # type: ignore[arg-type]


def test_crashing_and_vanishing_nodes_affect_nobody_else() -> None:
    buffer = hn.Buffer(8, log=lambda level, text: None)
    grid = Slow(crashing=3, silent=3, leaving=1)
    assert away(train_buffered(grid, buffer, start(), versions=12, pull_interval=0)) < 0.3  # type: ignore[arg-type]
    refused = {client for record in buffer.history for client in record.excluded}
    assert refused == {FIRST + 16 + k for k in range(3)}
    assert all(grid.asked[k] == 1 for k in range(19, 22))  # still waited for


def test_an_abandoned_message_is_sent_again_with_the_next_version() -> None:
    grid = Slow(silent=1, forgets=True)
    train_buffered(grid, hn.Buffer(8), start(), versions=6, timeout=1e-9, pull_interval=0)  # type: ignore[arg-type]
    assert grid.asked[16] > 2


def test_a_reply_in_another_clients_name_is_ignored() -> None:
    buffer = hn.Buffer(8, "mean", log=lambda level, text: None)
    result = train_buffered(Slow(thief=True), buffer, start(), versions=8, pull_interval=0)  # type: ignore[arg-type]
    assert away(result) < 0.3  # the mean, and no liar in it
    reasons = [why for record in buffer.history for why in record.excluded.values()]
    assert all("answered in place of node" in why for why in reasons)


def test_fewer_nodes_than_the_buffer_holds() -> None:
    buffer = hn.Buffer(50)
    assert away(train_buffered(Slow(), buffer, start(), versions=6, pull_interval=0)) < 0.4  # type: ignore[arg-type]
    assert {len(record.clients) for record in buffer.history} == {16}


def test_nodes_that_all_failed_are_asked_again() -> None:
    grid = Slow(honest=4, liars=0, restarting=2)
    result = train_buffered(grid, hn.Buffer(4, "mean"), start(), versions=6, pull_interval=0)  # type: ignore[arg-type]
    assert away(result) < 0.3


def test_waiting_updates_of_another_model_are_left_out(tmp_path: Path) -> None:
    before = hn.Buffer(4, folder=tmp_path)
    for client, update in enumerate(({"v": np.ones(3)}, {"w": np.ones(10, np.float32)}, {"w": np.ones((6, 10))})):
        before.add(client, update, version=0)
    del before
    log: list[str] = []
    buffer = hn.Buffer(4, folder=tmp_path, log=lambda level, text: log.append(text))
    start = ArrayRecord({"w": Array(np.zeros((6, 10), np.float32))})
    arrays = train_buffered(Slow(), buffer, start, versions=1, pull_interval=0.0)  # type: ignore[arg-type]
    assert arrays["w"].numpy().shape == (6, 10)
    assert buffer.history[0].excluded.keys() == {0, 1}  # the third fits: its dtype, too, is a float
    assert log[:2] == [
        "version 0: client 0 refused: tensor 'w' is missing",
        "version 0: client 1 refused: tensor 'w' has shape (10,), expected (6, 10)",
    ]


def test_a_full_disk_loses_an_update_and_not_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    def put(self: Shelf, *arguments: Any) -> None:
        nonlocal written
        written += 1
        if written % 5 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, *arguments)

    real = Shelf.put
    monkeypatch.setattr(Shelf, "put", put)
    buffer = hn.Buffer(4, "mean", folder=tmp_path)
    result = train_buffered(Slow(honest=4, liars=0), buffer, start(), versions=8, pull_interval=0)  # type: ignore[arg-type]
    assert away(result) < 0.3
    assert any("No space left" in why for record in buffer.history for why in record.excluded.values())
