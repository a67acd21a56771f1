"""Measure the server's model, and how well a rule separated honest from malicious clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from honestly.result import Aggregate
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.trainer import Model, Trainer


@dataclass(frozen=True)
class Evaluation:
    """Accuracy, mean cross-entropy and accuracy of each class, on a whole test set."""

    accuracy: float
    loss: float
    per_class: list[float | None]


def evaluate(trainer: Trainer, model: Model, test: Pixels, classes: int) -> Evaluation:
    """Evaluate the server's model on the full test set; a class without test images has no accuracy (None)."""
    logits = trainer.logits(model, test)
    right = logits.argmax(dim=1) == test.labels
    loss = torch.nn.functional.cross_entropy(logits.double(), test.labels)
    total = torch.bincount(test.labels, minlength=classes).tolist()
    hits = torch.bincount(test.labels[right], minlength=classes).tolist()
    per_class = [h / n if n else None for h, n in zip(hits, total, strict=True)]
    return Evaluation(sum(hits) / len(test.labels), float(loss), per_class)


def success_rate(trainer: Trainer, model: Model, triggered: Pixels) -> float:
    """ASR: the share of triggered test images that get the attacker's label."""
    hits: Tensor = trainer.logits(model, triggered).argmax(dim=1) == triggered.labels
    return float(hits.double().mean())


def accused_clients(out: Aggregate) -> npt.NDArray[np.bool_] | None:
    """(K,) clients that the rule did not believe: less than half as honest as the most honest client, or of weight 0.

    Relative, because the paper's own probabilities have a meaning only as ratios. None if the rule does not say.
    A client that was refused counts as excluded, not as accused.
    """
    used = np.array([client not in out.reasons for client in out.clients])
    if out.honesty is not None:
        return used & (out.honesty < 0.5 * out.honesty.max())
    if out.weights is not None:
        return used & (out.weights <= 0.0)
    return None
