"""DiLoCo and local SGD: replicas train on their own and average every so many steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from honestly.result import Aggregate
from honestly.torch.averager import RobustAverager
from honestly.torch.tensors import whole_or_shard


def nesterov(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """DiLoCo's outer optimiser: SGD with Nesterov momentum, learning rate 0.7, momentum 0.9."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


class RobustOuterOptimizer:
    """Every so many steps the replicas' movements since the last meeting become one gradient for an outer optimiser.

        pseudo-gradient  g_k = theta - theta_k          of replica k, which started at theta and is at theta_k
        outer step       theta <- outer(theta, robust average of g_k)

    All replicas continue from theta. With `torch.optim.SGD` of learning rate 1 this is local SGD (a robust average of
    the models), with Nesterov momentum DiLoCo, and `torch.optim.Adam` works as well.

    Args:
        model: this rank's replica.
        outer: makes the outer optimiser of a list of parameters.
        every: steps between two meetings.
        averager: with the group, the rule, memory and history; `RobustAverager()` if None.
        inner: the inner optimiser. Its state is dropped on a rank that was refused: momentum that is NaN stays NaN.
        buffers: average the float buffers (running means and variances), too.
        broadcast: begin with the model of the group's first rank, as DDP does.

    Attributes:
        optimizer: the outer optimiser, whose parameters are the common model.
        local_step: steps since the last meeting.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        outer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] = nesterov,
        *,
        every: int,
        averager: RobustAverager | None = None,
        inner: torch.optim.Optimizer | None = None,
        buffers: bool = True,
        broadcast: bool = True,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be a number of steps >= 1, got {every}")
        self.averager = RobustAverager() if averager is None else averager
        self.every, self.inner, self.local_step = every, inner, 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        floats = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
        self._buffers = floats if buffers else {}
        if broadcast:
            group = self.averager.group
            first = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)[0]
            for x in (*self._parameters.values(), *model.buffers()):
                dist.broadcast(whole_or_shard(x), first, group=group)
        self._common = {n: torch.nn.Parameter(p.detach().clone()) for n, p in self._parameters.items()}
        self._settled = {name: b.detach().clone() for name, b in self._buffers.items()}
        self.optimizer = outer(list(self._common.values()))

    def step(self) -> Aggregate | None:
        """Count a step of the inner optimiser; the result of the meeting if this was the last one before it."""
        self.local_step += 1
        return self.meet() if self.local_step >= self.every else None

    @torch.no_grad()
    def meet(self) -> Aggregate:
        """Average the movements of all replicas, make an outer step and continue from there."""
        moved = {name: self._common[name] - p for name, p in self._parameters.items()}
        drifted = {name: self._settled[name] - b for name, b in self._buffers.items()}
        out = self.averager.average({**moved, **drifted}, reference=0, buffers=list(drifted))
        averaged: Mapping[str, torch.Tensor] = out.value
        if "unusable" not in out.diagnostics:  # else all go back to where they met last
            for name, common in self._common.items():
                common.grad = averaged[name]
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self._settled = {name: b - averaged[name] for name, b in self._settled.items()}
        for name, p in self._parameters.items():
            p.copy_(self._common[name])
        for name, b in self._buffers.items():
            b.copy_(self._settled[name])
        if self.inner is not None and self.averager.me in out.excluded:
            self.inner.state.clear()
        self.local_step = 0
        return out

    def state_dict(self) -> dict[str, Any]:
        """The common model, the outer optimiser, and how far the replicas have come."""
        return {
            "common": {name: p.detach().clone() for name, p in self._common.items()},
            "buffers": dict(self._settled),
            "optimizer": self.optimizer.state_dict(),
            "averager": self.averager.state_dict(),
            "local_step": self.local_step,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint. The replica's own parameters are in the model's."""
        for name, p in self._common.items():
            p.copy_(state["common"][name])
        self._settled = {n: torch.empty_like(b).copy_(state["buffers"][n]) for n, b in self._settled.items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.averager.load_state_dict(state["averager"])
        self.local_step = int(state["local_step"])
