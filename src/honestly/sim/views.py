"""What the attackers of a round see: the simulator's side of `View`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from honestly.sim import metrics
from honestly.sim.attacks import UpdateAttack, View
from honestly.sim.attacks.vectors import DrawnAhead
from honestly.sim.differentiable import open_workshop
from honestly.sim.seeds import generator
from honestly.sim.stragglers import train_late

if TYPE_CHECKING:
    from honestly.sim.rounds import Federation
    from honestly.sim.state import RoundPlan, State


def look(
    federation: Federation,
    attack: UpdateAttack,
    state: State,
    plan: RoundPlan,
    theta: Tensor,
    root: Tensor | None = None,
) -> View:
    """The view of a round in which the clients of the plan have trained the models ``theta``, (K, d).

    ``root`` is the model that the server has trained on its own images, for a rule that needs it.
    """
    reference = state.model.theta.clone()  # an attack that changed it in place would change the server's model
    pipeline = None
    if attack.knows == "rule":
        pipeline = state.pipeline if root is None else state.pipeline.with_rule(root=root - reference)
    mine = torch.as_tensor(np.flatnonzero(plan.attacking), device=theta.device)
    rest = torch.as_tensor(np.flatnonzero(~plan.attacking), device=theta.device)
    return View(
        own=theta[mine] - reference,
        others=theta[rest] - reference if attack.knows in ("all", "rule") else None,
        reference=reference,
        rng=attackers_rng(federation.experiment.seed, plan.round),
        clients=len(plan.clients),
        pipeline=pipeline,
        memory=state.attack,
        layers=tuple(federation.layers.values()),
        clean=clean_models(federation, state, plan) - reference if attack.wants_clean else None,
        success=lambda models: success(federation, state, plan, models),
        workshop=lambda: open_workshop(federation, state, plan),
        noise=plan.noise,
    )


def attackers_rng(seed: int, round: int) -> np.random.Generator:
    """The attackers' random numbers in a round."""
    return generator(seed, "attack", round)


def draw_noise(seed: int, round: int, attackers: int, d: int) -> DrawnAhead:
    """(M, d) what `normal` draws first from ``view.rng`` in a round."""
    return DrawnAhead.of(attackers_rng(seed, round), (attackers, d))


def clean_models(federation: Federation, state: State, plan: RoundPlan) -> Tensor:
    """(M, d) the attackers' models if they had trained on their clean data, from the model that each has."""
    rows = np.flatnonzero(plan.attacking)
    work = [federation.clients.schedule(plan.round, plan.clients[i], attacking=False) for i in rows]
    if plan.late is None:
        return federation.trainer.train(state.model, work).theta
    return train_late(federation.trainer, (state.model, *state.past), work, [plan.late[i] for i in rows]).theta


def success(federation: Federation, state: State, plan: RoundPlan, models: Tensor) -> Tensor:
    """(n,) the share of the attackers' own poisoned samples that each of these models answers as they wish."""
    clients, pixels = federation.clients, federation.clients.pixels
    attackers = [plan.clients[i] for i in np.flatnonzero(plan.attacking)]
    mine = [samples[mask] for samples, mask in (clients.poisoned[k] for k in attackers if k in clients.poisoned)]
    chosen = torch.as_tensor(np.concatenate([np.zeros(0, np.int64), *mine]), device=models.device)
    if len(chosen) == 0:
        return torch.zeros(len(models), device=models.device)
    victims = replace(pixels, rows=pixels.rows[chosen], labels=pixels.labels[chosen])
    rates = [metrics.success_rate(federation.trainer, replace(state.model, theta=theta), victims) for theta in models]
    return torch.tensor(rates, device=models.device)
