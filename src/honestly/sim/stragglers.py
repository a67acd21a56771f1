"""Stragglers: the server averages as soon as some clients have answered, each with a model some versions old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from honestly.engine import Pipeline
from honestly.federation.discount import judge_stale
from honestly.result import Aggregate
from honestly.sim.experiment import Experiment
from honestly.sim.seeds import generator
from honestly.sim.train.schedule import Schedule
from honestly.sim.train.trainer import Model, Trainer, TrainingResult
from honestly.sources import open_source

#: The most versions by which an update is late; as many past models are kept.
MOST_LATE = 10
#: The exponent of FedBuff's discount.
DISCOUNT = 0.5


def first_to_answer(e: Experiment, round: int) -> tuple[np.ndarray, list[int]]:
    """The clients whose answers fill the buffer in this round, and how many versions late each is.

    Clients differ in speed for the whole run (log-normally); how late an answer is varies about that (geometrically),
    with mean ``delay`` over all clients.
    """
    rng = generator(e.seed, "stragglers", round)
    clients = np.sort(rng.choice(e.clients, size=e.buffer, replace=False))
    slow = generator(e.seed, "speeds").lognormal(0.0, 1.0, e.clients)
    mean = e.delay * (slow / slow.mean())[clients]
    late = rng.geometric(1.0 / (1.0 + mean)) - 1
    return clients, np.minimum(late, min(round - 1, MOST_LATE)).tolist()


def train_late(
    trainer: Trainer, past: Sequence[Model], schedules: Sequence[Schedule], late: Sequence[int]
) -> TrainingResult:
    """Every client trains from the model that it has; its update is then added to the current one.

    ``past[a]`` is the model of ``a`` versions ago, ``past[0]`` the current one.
    """
    rows: list[tuple[int, TrainingResult]] = []
    order: list[int] = []
    for age in sorted(set(late)):
        here = [i for i, a in enumerate(late) if a == age]
        part = trainer.train(past[age], [schedules[i] for i in here])
        rows.append((age, replace(part, theta=part.theta + (past[0].theta - past[age].theta))))
        order += here
    back = torch.as_tensor(np.argsort(order), device=past[0].theta.device)

    def together(name: str) -> Tensor:
        return torch.cat([getattr(result, name) for _, result in rows])[back.to(getattr(rows[0][1], name).device)]

    return TrainingResult(*(together(name) for name in ("theta", "statistics", "counters", "loss")))


def aggregate_late(
    updates: dict[int, Tensor], steps: Pipeline, *, reference: Tensor, layers: Any, late: Sequence[int]
) -> Aggregate:
    """The robust average with weights discounted by staleness; the reference gets the rest of the weight."""
    source = open_source(updates, reference=reference, root=steps.rule.root, layers=layers)
    try:
        steps.check(len(source.ids))
        out, rest = judge_stale(source, steps, dict(zip(updates, late, strict=True)), DISCOUNT)
    finally:
        source.close()
    return out if rest == 1.0 else replace(out, value=reference + rest * (out.value - reference))
