"""Triggers that are learnt from round to round: who learns from what, and which images carry the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from honestly.sim.attacks.learnt import LearntTrigger, TriggerTask
from honestly.sim.attacks.workshop import one_thread
from honestly.sim.differentiable import Differentiable, fit_images

if TYPE_CHECKING:
    from honestly.sim.rounds import Federation
    from honestly.sim.state import RoundPlan, State


class Painter:
    """The attackers' victims, and the victims of the test set, clean; painted in place for every round."""

    def __init__(self, federation: Federation, attack: LearntTrigger) -> None:
        self.federation, self.attack = federation, attack
        data, clients = federation.data, federation.clients
        self.victims: dict[int, Tensor] = {}
        for k in clients.poisoned:
            mine = clients.parts[k]
            chosen = mine[np.asarray(attack.victims(data.images[mine], data.labels[mine]))]
            self.victims[k] = fit_images(federation, data.images[chosen])
        chosen = np.asarray(attack.victims(data.test_images, data.test_labels))
        self.test = fit_images(federation, data.test_images[chosen])
        self.first_poisoned = len(data.images)

    def ready(self, state: State, plan: RoundPlan) -> Mapping[str, Any]:
        """Learn the trigger of this round if there are attackers, and paint it; returns what they remember of it."""
        with one_thread():
            return self._ready(state, plan)

    def _ready(self, state: State, plan: RoundPlan) -> Mapping[str, Any]:
        memory: Mapping[str, Any] = state.attack
        attackers = [plan.clients[i] for i in np.flatnonzero(plan.attacking)]
        images = [self.victims[k] for k in attackers if len(self.victims[k])]
        if images:
            memory = self.attack.learn(self._task(state, torch.cat(images)), memory)
        if memory:
            self._paint(memory)
        return memory

    def _task(self, state: State, images: Tensor) -> TriggerTask:
        labels = torch.full((len(images),), self.attack.source, device=images.device)
        return TriggerTask(state.model.theta, images, labels, Differentiable(self.federation, state).logits)

    def _paint(self, memory: Mapping[str, Any]) -> None:
        clients = self.federation.clients
        for k, (samples, mask) in clients.poisoned.items():
            rows = clients.pixels.rows[torch.as_tensor(samples[mask], device=self.federation.device)]
            mine = rows >= self.first_poisoned  # a trigger that changed nothing shares the clean image
            self._put(clients.pixels.images, rows[mine], self.victims[k][mine], memory, clients.pixels.crop)
        if clients.triggered is not None:
            rows = clients.triggered.rows
            self._put(clients.triggered.images, rows, self.test, memory, 0)

    def _put(self, images: Tensor, rows: Tensor, clean: Tensor, memory: Mapping[str, Any], crop: int) -> None:
        if len(rows) == 0:
            return
        with torch.no_grad():
            painted = (self.attack.paint(clean, memory) * 255.0).round().to(torch.uint8)
        h, w = painted.shape[2:]
        images[rows, :, crop : crop + h, crop : crop + w] = painted
