"""RobustFedAvg on bad replies: each excludes its client and never stops the round."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flower_messages import (
    BAD,
    failed,
    grid,
    honest,
    metadata,
    model,
    nan,
    record,
    reply,
    update,
    values,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

from honestly.federation.npy import write_npy
from honestly.flower import RobustFedAvg
from honestly.rules import Mean

pytestmark = pytest.mark.usefixtures("inside_a_run")


def changed(**arrays: Any) -> dict[str, np.ndarray]:
    return update(BAD) | {name.replace("__", "."): np.asarray(values) for name, values in arrays.items()}


def with_array(name: str, array: Array) -> ArrayRecord:
    arrays = record(update(BAD))
    arrays[name] = array
    return arrays


def npy_with_header(header: str) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64


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


@pytest.mark.parametrize("reference", [False, True], ids=["layout by majority", "layout of the global model"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_excludes_its_client_only(fault: str, reference: bool, caplog: pytest.LogCaptureFixture) -> None:
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
