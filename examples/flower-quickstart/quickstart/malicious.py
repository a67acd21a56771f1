"""Nodes that lie, break or vanish, as a Flower mod around an honest client app.

A node misbehaves if its node config says so (`attack="sign_flip"`, a deployment), or if the run config lists attacks
for the last partitions (`attacks="sign_flip,nan"`, a simulation).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable


def misbehave(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Compute the honest reply and apply the node's attack to it."""
    attack = _attack(context)
    honest = call_next(message, context)
    if not attack or message.metadata.message_type != "train" or honest.has_error():
        return honest
    old = message.content["arrays"].to_numpy_ndarrays()
    new = honest.content["arrays"].to_numpy_ndarrays()
    metrics = dict(honest.content["metrics"])
    if attack == "sign_flip":
        new = [w0 - 4 * (w - w0) for w0, w in zip(old, new, strict=True)]
    elif attack == "nan":
        new[0][0, 0] = np.nan
    elif attack == "wrong_shape":
        new[1] = np.zeros(len(new[1]) + 1, np.float32)
    elif attack == "size_liar":
        new = [w0 - 4 * (w - w0) for w0, w in zip(old, new, strict=True)]
        metrics["num-examples"] = 10**9
    elif attack == "extra_metric":
        metrics["vote"] = 1.0
    elif attack == "garbage":
        arrays = ArrayRecord(new)
        arrays["0"] = Array(dtype="float32", shape=(64, 32), stype="numpy.ndarray", data=b"not an array")
        return _reply(arrays, metrics, message)
    elif attack == "crash":
        raise RuntimeError("this client fails on purpose")
    elif attack == "hang":
        _hang(message, context)
    else:
        raise ValueError(f"attack={attack!r} is unknown")
    return _reply(ArrayRecord(new), metrics, message)


def _attack(context: Context) -> str:
    if "attack" in context.node_config:
        return str(context.node_config["attack"])
    attacks = [name for name in str(context.run_config.get("attacks", "")).split(",") if name]
    from_end = int(context.node_config["num-partitions"]) - 1 - int(context.node_config["partition-id"])
    return attacks[from_end] if from_end < len(attacks) else ""


def _reply(arrays: ArrayRecord, metrics: dict, message: Message) -> Message:
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)


def _hang(message: Message, context: Context) -> None:
    """From round 2 on, report that work has begun and never finish it, like a node that is killed during a round."""
    if int(message.content["config"]["server-round"]) >= 2:
        if marker := context.node_config.get("marker"):
            Path(str(marker)).write_text(str(os.getpid()))
        time.sleep(600)
