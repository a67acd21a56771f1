"""The federation's model as a function of its flat parameters, for attacks that differentiate it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from honestly.sim.attacks.workshop import Workshop
from honestly.sim.data import prepare
from honestly.sim.models import source
from honestly.sim.train.flat import Layout

if TYPE_CHECKING:
    from honestly.sim.rounds import Federation
    from honestly.sim.state import RoundPlan, State


class Differentiable:
    """Outputs and features of the model in evaluation mode, with the running statistics of a round.

    Images have pixels from 0 to 1.
    """

    def __init__(self, federation: Federation, state: State) -> None:
        self.module, pixels = federation.module, federation.clients.pixels
        self.parameters = Layout.of_parameters(self.module)
        self.scale, self.shift = pixels.scale[:, None, None] * 255.0, pixels.shift[:, None, None]
        statistics = Layout.of_statistics(self.module)
        frozen = {n: p.to(state.model.theta.device) for n, p in self.module.named_parameters() if not p.requires_grad}
        self.last = [m for m in self.module.modules() if next(m.parameters(recurse=False), None) is not None][-1]
        self.fixed = {**frozen, **dict(statistics.views(state.model.statistics))}

    def logits(self, theta: Tensor, images: Tensor) -> Tensor:
        """(n, classes) the model's outputs."""
        self.module.eval()
        tensors = {**self.fixed, **dict(self.parameters.views(theta))}
        return functional_call(self.module, tensors, (images * self.scale + self.shift,))

    def features(self, theta: Tensor, images: Tensor) -> Tensor:
        """(n, f) the input of the last layer that has parameters."""
        inputs: list[Tensor] = []
        hook = self.last.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        try:
            self.logits(theta, images)
        finally:
            hook.remove()
        return inputs[-1].flatten(1)


def fit_images(federation: Federation, images: Any) -> Tensor:
    """Raw images as tensors from 0 to 1, at the size that the model sees, on the device."""
    e, data = federation.experiment, federation.data
    side = source(e.model).side
    size = (side, side) if side else data.size[1:]
    return torch.from_numpy(prepare(images, size, e.fit)).to(federation.device).float() / 255.0


def open_workshop(federation: Federation, state: State, plan: RoundPlan) -> Workshop:
    """What the attackers of a round need for training of their own."""
    e, clients, model = federation.experiment, federation.clients, Differentiable(federation, state)
    attackers = [plan.clients[i] for i in np.flatnonzero(plan.attacking)]
    clean = {k: (clients.parts[k], np.zeros(len(clients.parts[k]), dtype=np.bool_)) for k in attackers}
    data = [clients.poisoned.get(k, clean[k]) for k in attackers]
    ends = np.cumsum([len(samples) for samples, _ in data])
    rows = torch.as_tensor(np.concatenate([samples for samples, _ in data]), device=federation.device)
    return Workshop(
        theta=state.model.theta,
        images=clients.pixels.batch(rows).float() / 255.0,
        labels=clients.pixels.labels[rows],
        poisoned=torch.as_tensor(np.concatenate([mask for _, mask in data]), device=federation.device),
        samples=[np.arange(end - len(samples), end) for end, (samples, _) in zip(ends.tolist(), data, strict=True)],
        logits=torch.vmap(model.logits),
        features=torch.vmap(model.features),
        size=federation.data.size,
        fit=lambda images: fit_images(federation, images),
        epochs=e.epochs,
        batch=e.batch,
        rate=e.lr,
        momentum=e.momentum,
    )
