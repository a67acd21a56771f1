"""Real Flower messages, honest and hostile."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import Array, ArrayRecord, Error, Message, Metadata, MetricRecord, RecordDict

FIRST_NODE = 2**64 - 100  # node ids are unsigned and beyond int64
BAD = FIRST_NODE + 50  # the client whose reply is bad
MODEL = {"conv.weight": (4, 3), "conv.bias": (4,), "head.weight": (2, 4)}


def model(value: float = 0.0) -> dict[str, np.ndarray]:
    """A small model with a BatchNorm counter."""
    arrays: dict[str, np.ndarray] = {name: np.full(shape, value, np.float32) for name, shape in MODEL.items()}
    return arrays | {"bn.num_batches_tracked": np.array(7, dtype=np.int64)}


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def metadata(node: int) -> Metadata:
    return Metadata(
        run_id=1,
        message_id="",
        src_node_id=node,
        dst_node_id=1,
        reply_to_message_id="x",
        group_id="",
        created_at=0.0,
        ttl=10.0,
        message_type="train",
    )


def reply(node: int, arrays: Any, metrics: dict[str, Any] | None = None) -> Message:
    metrics = {"num-examples": 100, "loss": 0.5} if metrics is None else metrics
    arrays = arrays if isinstance(arrays, ArrayRecord) else record(arrays)
    return Message(content=RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), metadata=metadata(node))


def failed(node: int) -> Message:
    return Message(error=Error(code=0, reason="Traceback ...\nRuntimeError: out of disk"), metadata=metadata(node))


def update(node: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The update of an honest client: the common step and its own noise."""
    rng = np.random.default_rng([seed, node % 2**32])
    arrays = model(1.0)
    for name in MODEL:
        arrays[name] += rng.normal(scale=0.2, size=MODEL[name]).astype(np.float32)
    return arrays


def honest(K: int = 9, first: int = 0) -> list[Message]:
    """K honest replies."""
    nodes = [FIRST_NODE + k for k in range(first, first + K)]
    return [reply(node, update(node), {"num-examples": 100 + k, "loss": 0.1 * k}) for k, node in enumerate(nodes)]


def nan() -> Message:
    """A reply with one NaN."""
    arrays = update(BAD)
    arrays["conv.weight"][1, 1] = np.nan
    return reply(BAD, arrays)


def lying(node: int) -> Message:
    """A sign flip with gamma = 4."""
    return reply(node, {n: -4 * v if v.dtype.kind == "f" else v for n, v in update(node).items()})


def values(arrays: ArrayRecord | None) -> dict[str, np.ndarray]:
    """The arrays of a record."""
    assert arrays is not None
    return {name: array.numpy() for name, array in arrays.items()}


def distance(arrays: dict[str, np.ndarray], centre: float = 1.0) -> float:
    """The largest difference from the common step."""
    return max(float(np.abs(arrays[name] - centre).max()) for name in MODEL)


def grid(nodes: Any) -> Mock:
    """A grid that knows these nodes."""
    nodes = list(dict.fromkeys(nodes))
    return Mock(get_node_ids=Mock(return_value=nodes))


@pytest.fixture
def inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instructions may only be made inside a run, so the process says that it is in one."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:  # flwr before 1.41 does not check
        return
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
