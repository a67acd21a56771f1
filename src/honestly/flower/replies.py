"""A Flower reply as arrays, metrics and a size: views of its bytes, checked against what it declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from honestly.federation import History, Reply, Round
from honestly.federation.npy import BadArrayError, read_npy, write_npy

NUMPY = "numpy.ndarray"  # Flower's name for the bytes of an .npy file
#: In the user's metrics function, a client's size counts for at most this many times the median.
SIZE_CAP = 3.0


def train_reply(message: Message, size_key: str) -> Reply:
    """A client's update and metrics. A fault becomes a sentence; nothing is raised, and the message is not changed."""
    return _reply(message, size_key, arrays=True)


def evaluate_reply(message: Message, size_key: str) -> Reply:
    """A client's report on the model."""
    return _reply(message, size_key, arrays=False)


def _reply(message: Message, size_key: str, *, arrays: bool) -> Reply:
    client = message.metadata.src_node_id
    try:
        if message.has_error():
            reason = (message.error.reason or "no reason given").strip().splitlines()[-1:]
            return Reply(client, fault=f"error {message.error.code}: {''.join(reason)[:200]}", absent=True)
        content = message.content
        update = _only_update(content) if arrays else None
        metrics = _only_metrics(content)
    except BadArrayError as fault:
        return Reply(client, fault=str(fault))
    except Exception as error:  # an exception caused by one client's reply concerns only that client
        return Reply(client, fault=f"cannot be read ({type(error).__name__}: {str(error)[:200]})")
    size = metrics.pop(size_key, None)
    return Reply(client, update=update, size=size, metrics=metrics)


def _only_update(content: RecordDict) -> dict[str, npt.NDArray[Any]]:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise BadArrayError(f"holds {len(records)} array records, expected one")
    return views(records[0])


def _only_metrics(content: RecordDict) -> dict[str, Any]:
    records = list(content.metric_records.values())
    if len(records) > 1:
        raise BadArrayError(f"holds {len(records)} metric records, expected one")
    return dict(records[0]) if records else {}


def views(record: ArrayRecord) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a record by name, sharing its memory; BadArrayError if one does not match its declaration."""
    return {name: _view(name, array) for name, array in record.items()}


def _view(name: str, array: Array) -> npt.NDArray[Any]:
    short = name if len(name) <= 60 else name[:57] + "..."
    if array.stype != NUMPY:
        raise BadArrayError(f"array {short!r} is serialised as {array.stype!r}, expected {NUMPY!r}")
    try:
        view = read_npy(array.data)
    except BadArrayError as fault:
        raise BadArrayError(f"array {short!r} {fault}") from None
    if tuple(array.shape) != view.shape or array.dtype != str(view.dtype):
        declared = f"{array.dtype} {tuple(array.shape)}"[:80]
        raise BadArrayError(f"array {short!r} declares {declared}, but holds {view.dtype} {view.shape}")
    return view


def record_of(value: dict[str, npt.NDArray[Any]], like: ArrayRecord | None) -> ArrayRecord:
    """The new model for Flower, in the order and dtypes of the old one; `value` is emptied to save memory.

    The order matters: `to_numpy_ndarrays` returns arrays by position, and a client can choose the order in its reply.
    """
    record = ArrayRecord()
    for name in list(value) if like is None else list(like):
        values = value.pop(name)
        if like is not None:
            values = values.astype(np.dtype(like[name].dtype), copy=False)
        record[name] = Array(dtype=str(values.dtype), shape=values.shape, stype=NUMPY, data=write_npy(values))
    return record


def believed_replies(messages: Sequence[Message], record: Round) -> list[Message]:
    """The replies of clients that are believed: not excluded, and more likely honest than not."""
    votes = record.votes()
    return [m for m in messages if not m.has_error() and votes.get(m.metadata.src_node_id, 0.0) > record.least_vote]


def capped_contents(messages: Sequence[Message], size_key: str) -> list[RecordDict]:
    """The contents of the replies for the user's metrics function, each size at most `SIZE_CAP` medians.

    The records are new and share the arrays: replies are never changed.
    """
    sizes = [_size(message.content, size_key) for message in messages]
    known = sorted(size for size in sizes if size is not None)
    contents: list[RecordDict] = []
    for message, size in zip(messages, sizes, strict=True):
        content = RecordDict(dict(message.content))
        if size is not None:
            cap = SIZE_CAP * known[(len(known) - 1) // 2]
            for key, metrics in message.content.metric_records.items():
                content[key] = MetricRecord(dict(metrics) | {size_key: min(size, type(size)(cap))})
        contents.append(content)
    return contents


def _size(content: RecordDict, size_key: str) -> Any:
    return next((record[size_key] for record in content.metric_records.values() if size_key in record), None)


def name_run(history: History, grid: Grid) -> None:
    """Use Flower's run id, which `flwr ls` lists, as the name of a run without one."""
    number = getattr(getattr(grid, "run", None), "run_id", None)
    if not history.run and isinstance(number, int):
        history.run = str(number)
