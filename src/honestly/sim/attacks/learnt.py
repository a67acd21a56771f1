"""Backdoors whose trigger is optimised in each round against the global model of that round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from honestly.sim.attacks.attack import Array
from honestly.sim.attacks.backdoor import BadNets


@dataclass(frozen=True)
class TriggerTask:
    """What the attackers of a round learn their trigger from; tensors of PyTorch.

    Attributes:
        theta: (d,) the global model.
        images: (n, c, h, w) the attackers' own victims, pixels from 0 to 1, at the size that the model sees.
        labels: (n,) their true classes.
        logits: (theta, images) -> (n, classes), differentiable in both.
    """

    theta: Array
    images: Array
    labels: Array
    logits: Callable[[Array, Array], Array]


@dataclass(frozen=True, kw_only=True)
class LearntTrigger(BadNets):
    """A backdoor with a trigger that is remembered from round to round and learnt further in each.

    The simulator calls `learn` before the attackers train, paints the result on their poisoned images and on the test
    set's victims, and saves it with the run.
    """

    @abstractmethod
    def learn(self, task: TriggerTask, memory: Mapping[str, Array]) -> Mapping[str, Array]:
        """The trigger for this round, from the one of the last round ({} in the first)."""

    @abstractmethod
    def paint(self, images: Array, memory: Mapping[str, Array]) -> Array:
        """(n, c, h, w) tensors from 0 to 1 with the trigger; differentiable in what the memory holds."""
