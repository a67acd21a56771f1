"""Asynchronous training in a ServerApp: no rounds; a node gets the next model as soon as there is one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from honestly.federation.buffer import Buffer
from honestly.federation.differences import add_change
from honestly.flower.replies import name_run, record_of, train_reply, views


def train_buffered(
    grid: Grid,
    buffer: Buffer,
    arrays: ArrayRecord,
    *,
    versions: int,
    config: ConfigRecord | None = None,
    weighted_by_key: str = "num-examples",
    timeout: float = 3600.0,
    pull_interval: float = 3.0,
    on_version: Callable[[int, ArrayRecord], None] | None = None,
) -> ArrayRecord:
    """Train until the buffer has reached a version, and return the last model.

    Every connected node gets the newest model and trains. Its reply goes into the buffer, with the version of the model
    that it was sent. A full buffer gives a new version, which is sent to the idle nodes. The version of a reply is
    known from the message that it answers, not from what the node reports. If all nodes have answered and the buffer is
    not full, the updates in it are averaged; if there are none, because all nodes failed, they are asked again.

    Args:
        grid: Flower's grid.
        buffer: an `hn.Buffer`. After a restart, create it with the version of the saved model, and pass the model as
            `arrays`.
        arrays: the model to start from.
        versions: the buffer's version at which training ends.
        config: sent to the nodes with every model, together with "server-round".
        weighted_by_key: the metric with a node's number of examples.
        timeout: seconds to wait for a reply; after that, the node gets the next version.
        pull_interval: seconds between two polls for replies.
        on_version: called with each new version and its model: save both here.

    Example:
        >>> from flwr.serverapp import ServerApp
        >>> app = ServerApp()
        >>> @app.main()
        ... def main(grid, context):
        ...     buffer = hn.Buffer(10, folder="state")
        ...     train_buffered(grid, buffer, ArrayRecord(new_model()), versions=100)
    """
    name_run(buffer.history, grid)
    model = dict(views(arrays))
    buffer.expect(model)  # the folder may hold updates of another model
    models: dict[int, dict[str, Any]] = {buffer.version: model}
    waiting: dict[str, tuple[int, int, float]] = {}  # message -> node, version, deadline
    sent: dict[int, int] = {}  # node -> the last version that it was sent

    def advance(out: Any) -> None:
        nonlocal model
        model = {name: add_change(old, out.value[name]) for name, old in model.items()}
        models[buffer.version] = model
        needed = {version for _, version, _ in waiting.values()}
        for version in [v for v in models if v != buffer.version and v not in needed]:
            del models[version]
        if on_version is not None:
            on_version(buffer.version, record_of(dict(model), arrays))

    while buffer.version < versions:
        busy = {node for node, _, _ in waiting.values()}
        idle = [n for n in grid.get_node_ids() if n not in busy and sent.get(n, -1) < buffer.version]
        content = {"arrays": record_of(dict(model), arrays)} if idle else {}
        for node in idle:
            settings = ConfigRecord({**(config or {}), "server-round": buffer.version + 1})
            record = RecordDict({**content, "config": settings})
            message = Message(content=record, message_type="train", dst_node_id=node, ttl=timeout)
            sent[node] = buffer.version
            for identity in filter(None, grid.push_messages([message])):  # none for a node that has just left
                waiting[identity] = node, buffer.version, time.monotonic() + timeout
        replies = list(grid.pull_messages(list(waiting))) if waiting else []
        for reply in replies:
            request = waiting.pop(reply.metadata.reply_to_message_id, None)
            if request is not None and buffer.version < versions:
                out = _take(buffer, reply, request[0], request[1], models, weighted_by_key)
                if out is not None:
                    advance(out)
        for identity in [i for i, (_, _, end) in waiting.items() if time.monotonic() > end]:
            del waiting[identity]
        if not waiting and not replies:
            out = buffer.aggregate()  # no node is left that could fill it
            if out is not None:
                advance(out)
                continue
            sent.clear()  # nothing to average: all failed or were refused, so ask them again
        if not replies:
            time.sleep(pull_interval)
    return record_of(dict(model), arrays)


def _take(
    buffer: Buffer, reply: Message, node: int, version: int, models: dict[int, dict[str, Any]], size_key: str
) -> Any:
    if reply.metadata.src_node_id != node and not reply.has_error():  # Flower reports errors in its own name
        buffer.refuse(reply.metadata.src_node_id, f"answered in place of node {node}")
        return None
    parsed = train_reply(reply, size_key)
    if parsed.fault is not None:
        buffer.refuse(node, parsed.fault)
        return None
    try:
        return buffer.add(node, parsed.update, version=version, base=models[version], size=parsed.size)
    except OSError as error:  # a full disk loses this update, not the training
        buffer.refuse(node, f"its update could not be stored: {error}")
        return None
