"""IBA: a small network adds to each image the faint noise that makes the global model answer the target class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from honestly.sim.attacks.attack import Array, setting
from honestly.sim.attacks.learnt import LearntTrigger, TriggerTask

WIDTH = 8  # channels between the generator's two convolutions


@dataclass(frozen=True, kw_only=True)
class IBA(LearntTrigger):
    """`T(x) = clip(x + epsilon tanh(g(x)))`, g a convolutional network learnt against the global model.

        g = argmin E L(theta, T(x), target),    ``steps`` steps of Adam per round

    The trigger differs from image to image and no pixel changes by more than epsilon. Knows its own data and the global
    model; attackers pool their images of class ``source``. Conventions: g has two 3 x 3 convolutions with 8 channels
    between them, where the authors take an auto-encoder or a U-Net; like our other backdoors it poisons one class
    alone; the authors' second part, poisoning parameters that change little, is `neurotoxin`.

    Args:
        epsilon: the largest change of a pixel; pixels are from 0 to 1.
        steps: training steps of the generator per round.
        rate: Adam's learning rate.
        seed: of the generator's initial weights.

    >>> import numpy as np
    >>> images = np.full((1, 1, 8, 8), 100, np.uint8)
    >>> int(np.abs(IBA(epsilon=0.1).stamp(images).astype(int) - images).max())
    25
    """

    name = "iba"
    summary = "faint noise as trigger, drawn for each image by a network learnt against the global model"
    reference = "Nguyen et al., IBA: Towards Irreversible Backdoor Attacks in Federated Learning, NeurIPS 2023"
    knows = "malicious"
    training = 2.0
    keeps = "the generator"

    epsilon: float = setting(0.2, above=0.0, most=1)
    steps: int = setting(40, whole=True, least=0)
    rate: float = setting(0.02, above=0.0)
    seed: int = setting(0, whole=True, least=0)

    def stamp(self, images: Array) -> Array:
        """The initial trigger: every second pixel brighter by epsilon, the others darker."""
        from array_api_compat import array_namespace

        xp = array_namespace(images)
        h, w = int(images.shape[2]), int(images.shape[3])
        board = (np.add.outer(np.arange(h), np.arange(w)) % 2 * 2 - 1) * int(255 * self.epsilon)
        moved = xp.astype(images, xp.int32) + xp.asarray(board.astype(np.int32), device=images.device)
        zero = xp.zeros_like(moved)
        return xp.astype(xp.minimum(xp.maximum(moved, zero), zero + 255), images.dtype)

    def paint(self, images: Array, memory: Mapping[str, Array]) -> Array:
        """Each image with its own noise."""
        from torch.nn.functional import conv2d

        c = int(images.shape[1])
        (w1, b1), (w2, b2) = self._layers(memory, images, c)
        hidden = conv2d(images, w1, b1, padding=1).relu()
        return (images + self.epsilon * conv2d(hidden, w2, b2, padding=1).tanh()).clamp(0.0, 1.0)

    def learn(self, task: TriggerTask, memory: Mapping[str, Array]) -> Mapping[str, Array]:
        """Adam on the generator's weights."""
        import torch
        from torch.nn.functional import cross_entropy

        weights = self._weights(memory, task.images).clone().requires_grad_(True)
        adam = torch.optim.Adam([weights], lr=self.rate)
        target = torch.full_like(task.labels, self.target)
        for _ in range(self.steps):
            adam.zero_grad()
            loss = cross_entropy(task.logits(task.theta, self.paint(task.images, {"generator": weights})), target)
            loss.backward()
            adam.step()
        return {"generator": weights.detach()}

    def _weights(self, memory: Mapping[str, Array], like: Array) -> Array:
        """The generator as one row of numbers; in the first round random."""
        import torch

        c = int(like.shape[1])
        if "generator" in memory:
            return torch.as_tensor(memory["generator"], dtype=like.dtype, device=like.device)
        draws = np.random.default_rng(self.seed).standard_normal(2 * 9 * c * WIDTH + WIDTH + c, dtype=np.float32)
        return torch.as_tensor(0.2 * draws, dtype=like.dtype, device=like.device)

    def _layers(self, memory: Mapping[str, Array], like: Array, c: int) -> Any:
        row, n = self._weights(memory, like), 9 * c * WIDTH
        first = row[:n].reshape(WIDTH, c, 3, 3), row[n : n + WIDTH]
        return first, (row[n + WIDTH : 2 * n + WIDTH].reshape(c, WIDTH, 3, 3), row[2 * n + WIDTH :])
