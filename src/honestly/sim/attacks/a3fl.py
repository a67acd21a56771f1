"""A3FL: a trigger that works on the global model, and on one that has been trained to forget it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, setting
from honestly.sim.attacks.learnt import LearntTrigger, TriggerTask
from honestly.sim.attacks.triggers import draw

OFFSET = 1  # rows and columns between the trigger and the corner
GREY = 128


@dataclass(frozen=True, kw_only=True)
class A3FL(LearntTrigger):
    """A square of pixels, optimised against the global model and against its adversarially adapted copy.

        theta' = theta after ``unlearn`` steps on triggered images with their true labels
        delta <- clip(delta - rate sign(grad_delta (L(theta, x + delta, target) + balance cos(theta', theta) L(theta',
                 x + delta, target)))),   ``steps`` times, with a new theta' every 10 steps

    The backdoor hardly has to be trained into the model, and survives what the honest clients do to it. Knows its own
    data and the global model; attackers pool their images of class ``source``. Convention: like our other backdoors it
    poisons that class alone, where the authors poison a share of all images. The trigger starts grey.

    Args:
        side: height and width of the trigger in pixels.
        steps: optimisation steps of the trigger per round.
        rate: length of a step; pixels are from 0 to 1.
        balance: weight of the adapted model's loss (the authors' lambda_0).
        unlearn: steps of gradient descent, with rate 0.05, of the adapted model.

    >>> import numpy as np
    >>> int(A3FL(side=2).stamp(np.zeros((1, 1, 8, 8), np.uint8)).sum()) // 128
    4
    """

    name = "a3fl"
    summary = "a backdoor whose trigger is optimised against the global model and one that unlearns it"
    reference = "Zhang et al., A3FL: Adversarially Adaptive Backdoor Attacks to Federated Learning, NeurIPS 2023"
    knows = "malicious"
    training = 2.0
    keeps = "d"

    side: int = setting(3, whole=True, least=1)
    steps: int = setting(40, whole=True, least=0)
    rate: float = setting(0.05, above=0.0)
    balance: float = setting(0.01, least=0.0)
    unlearn: int = setting(5, whole=True, least=0)

    def stamp(self, images: Array) -> Array:
        """The initial trigger: a grey square."""
        rows = range(OFFSET, OFFSET + self.side)
        return draw(images, tuple((row, OFFSET, OFFSET + self.side - 1) for row in rows), GREY)

    def paint(self, images: Array, memory: Mapping[str, Array]) -> Array:
        """The square in the corner."""
        import torch

        painted = images.clone()
        place = painted[:, :, OFFSET : OFFSET + self.side, OFFSET : OFFSET + self.side]
        if "trigger" not in memory:
            place[...] = GREY / 255
            return painted
        trigger = torch.as_tensor(memory["trigger"], dtype=images.dtype, device=images.device)
        place[...] = trigger[:, : place.shape[2], : place.shape[3]]
        return painted

    def learn(self, task: TriggerTask, memory: Mapping[str, Array]) -> Mapping[str, Array]:
        """Signed gradient steps on the pixels of the square."""
        import torch
        from torch.nn.functional import cosine_similarity, cross_entropy

        like = task.images
        shape = (like.shape[1], self.side, self.side)
        start = memory.get("trigger", torch.full(shape, GREY / 255))
        trigger = torch.as_tensor(start, dtype=like.dtype, device=like.device).clone()
        target = torch.full_like(task.labels, self.target)
        adapted, weight = task.theta, 0.0
        for step in range(self.steps):
            if step % 10 == 0 and self.balance > 0.0:
                adapted = self._forgetful(task, {"trigger": trigger})
                weight = self.balance * float(cosine_similarity(adapted, task.theta, dim=0))
            trigger.requires_grad_(True)
            painted = self.paint(like, {"trigger": trigger})
            loss = cross_entropy(task.logits(task.theta, painted), target)
            if weight:
                loss = loss + weight * cross_entropy(task.logits(adapted, painted), target)
            (slope,) = torch.autograd.grad(loss, trigger)
            trigger = (trigger.detach() - self.rate * slope.sign()).clamp(0.0, 1.0)
        return {"trigger": trigger.detach()}

    def _forgetful(self, task: TriggerTask, memory: Mapping[str, Array]) -> Array:
        """The global model after a few steps on triggered images with their true labels."""
        import torch
        from torch.nn.functional import cross_entropy

        theta, painted = task.theta.clone(), self.paint(task.images, memory).detach()
        for _ in range(self.unlearn):
            theta.requires_grad_(True)
            (slope,) = torch.autograd.grad(cross_entropy(task.logits(theta, painted), task.labels), theta)
            theta = (theta - 0.05 * slope).detach()
        return theta
