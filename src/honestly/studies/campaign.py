"""An attacker that plans over several rounds: a backdoor trained under the constraint of staying believed.

In each round the attackers train twice, honestly and with the backdoor. They send their honest update (or the honest
mean) plus the difference between the two, with a strength for each layer that a policy sets. They know the rule and all
updates, query the rule before they send, and weaken the lie until the rule believes them. A policy is scored by the
attack success after several simulated rounds; the search draws policies at random and varies the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

import honestly
from honestly.engine import Pipeline
from honestly.result import Aggregate, AggregationError, Float
from honestly.sim import metrics
from honestly.sim.attacks import Backdoor
from honestly.sim.data import Dataset, load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation
from honestly.sim.train.trainer import Model
from honestly.studies.layers.lies import ROLES

#: Strengths that a policy starts from, in differences between backdoored and honest training.
STRENGTHS = (0.5, 1.0, 2.0, 4.0)
#: Queries to the rule per round, to find the largest strength that it believes.
QUESTIONS = 6
#: Accuracy below which a backdoor counts for nothing: nobody uses the model.
USABLE = 0.5
DRAWN = 0.5  # share of the tries that are drawn; the others change the best


@dataclass(frozen=True)
class Policy:
    """How the attackers lie in each round.

    Attributes:
        strength: of the difference between backdoored and honest training.
        effort: (L,) factors of it in each layer.
        shared: whether all send the mean of their differences, or each its own.
        honest: whether it is added to each attacker's honest update, or to the mean of all honest ones.
        believed: whether the strength is lowered until no attacker is accused.
        role: what the last ``spared`` attackers do instead, one of `ROLES`: send the model back, copy an honest client
            or the first attacker, or train honestly.
        target: the honest client that mimics copy.
    """

    strength: float
    effort: Float
    shared: bool = False
    honest: bool = True
    believed: bool = True
    role: str = ""
    spared: int = 0
    target: int = 0


@dataclass(frozen=True)
class CampaignResult:
    """The result of a policy: final accuracy and attack success, and the mean number of clients accused per round.

    ``used`` is the mean share of the strength that was believed.
    """

    policy: Policy
    accuracy: float
    asr: float
    accused: float
    false_accusations: float
    used: float

    @property
    def value(self) -> float:
        """What the attacker wants: attack success, in a model that people would still use."""
        return self.asr if self.accuracy >= USABLE else 0.0


@dataclass(frozen=True)
class SearchResult:
    """The best policy, and how many were tried."""

    best: CampaignResult
    tries: int


class Campaign:
    """Backdoor attackers against a rule, through the simulator.

    Args:
        experiment: its attack is a backdoor, its model has no buffers, and all clients take part in every round.
        data: the data set, if it is already in memory.
    """

    def __init__(self, experiment: Experiment, *, data: Dataset | None = None) -> None:
        e = experiment
        if not isinstance(e.make_attack(), Backdoor) or not e.adversary.malicious:
            raise ValueError(f"attack = {e.attack.name}, malicious = {e.malicious}: give a backdoor and attackers")
        if e.participation < 1 or e.dropout > 0 or e.chosen != "last":
            raise ValueError("leave out participation, dropout and chosen: all take part, and the last ones attack")
        self.experiment = e
        self.federation = Federation(e, data=load(e.dataset) if data is None else data)
        if any(True for _ in self.federation.module.buffers()):
            raise ValueError(f"model = {e.model}: has buffers (BatchNorm); give a model without, such as cnn")
        self.L = len(self.federation.layers)
        self._start: Model | None = None

    @property
    def start(self) -> Model:
        """The model before the first attack: after ``warm_up`` rounds of plain averaging of honest updates."""
        if self._start is None:
            model = self.federation.start().model
            for t in range(1, self.experiment.warm_up + 1):
                theta = self._train(model, t, range(self.experiment.clients), attacking=False)
                model = replace(model, theta=theta.double().mean(dim=0).to(theta.dtype))
            self._start = model
        return self._start

    def _train(self, model: Model, t: int, clients: range, *, attacking: bool) -> Tensor:
        plan = [self.federation.clients.schedule(t, k, attacking=attacking) for k in clients]
        return self.federation.trainer.train(model, plan).theta

    def run(self, policy: Policy) -> CampaignResult:
        """Simulate all rounds of the experiment under a policy."""
        e, M = self.experiment, self.experiment.adversary.malicious
        K, model, pipeline = e.clients, self.start, e.make_pipeline()
        accused, false, used = list[int](), list[int](), list[float]()
        for t in range(e.warm_up + 1, e.warm_up + e.rounds + 1):
            reference = model.theta
            honest = self._train(model, t, range(K), attacking=False) - reference
            poisoned = self._train(model, t, range(K - M, K), attacking=True) - reference

            def ask(
                factor: float, honest: Tensor, poisoned: Tensor, reference: Tensor, steps: Pipeline
            ) -> Aggregate | None:
                sent = reference + self.make_updates(policy, honest, poisoned, factor)
                layers = self.federation.layers
                try:
                    return honestly.aggregate(sent, steps, reference=reference, layers=layers)
                except AggregationError:  # too few usable updates: as in the simulator, the model stays as it is
                    return None

            known = partial(ask, honest=honest, poisoned=poisoned, reference=reference, steps=pipeline)
            factor, out = self._largest(known) if policy.believed else (1.0, known(1.0))
            named = [] if out is None else self.accused_clients(out)
            accused.append(len([k for k in named if k >= K - M]))
            false.append(len([k for k in named if k < K - M]))
            used.append(factor)
            if out is not None:
                model = replace(model, theta=out.value)
                pipeline = pipeline.after(out.diagnostics)
        score = metrics.evaluate(self.federation.trainer, model, self.federation.clients.test, 10)
        triggered = self.federation.clients.triggered
        asr = 0.0 if triggered is None else metrics.success_rate(self.federation.trainer, model, triggered)
        return CampaignResult(
            policy, score.accuracy, asr, float(np.mean(accused)), float(np.mean(false)), float(np.mean(used))
        )

    def make_updates(self, policy: Policy, honest: Tensor, poisoned: Tensor, factor: float) -> Tensor:
        """(K, d) what the server gets: the last rows are the lies, at a share of the policy's strength."""
        M = len(poisoned)
        own = honest[len(honest) - M :]
        difference = poisoned - own
        if policy.shared:
            difference = difference.mean(dim=0, keepdim=True).expand_as(difference)
        sizes = torch.tensor(list(self.federation.layers.values()))
        effort = torch.repeat_interleave(torch.as_tensor(policy.effort, dtype=honest.dtype), sizes)
        base = own if policy.honest else honest[: len(honest) - M].mean(dim=0, keepdim=True)
        lies = base + factor * policy.strength * effort * difference
        if policy.role and policy.spared:
            roles = {
                "idle": lambda: torch.zeros_like(lies),
                "mimic": lambda: honest[policy.target % (len(honest) - M)].expand_as(lies),
                "copies": lambda: lies[:1].expand_as(lies),
                "honest": lambda: own,
            }
            lies = torch.cat([lies[: M - policy.spared], roles[policy.role]()[M - policy.spared :]])
        return torch.cat([honest[: len(honest) - M], lies])

    def accused_clients(self, out: Aggregate) -> list[int]:
        """The clients that the rule turned against: by honesty, or by a weight below a tenth of an equal share.

        The threshold is half of the highest honesty, because the paper's probabilities are meaningful only as ratios.
        """
        K = self.experiment.clients
        if out.honesty is not None:
            blamed = out.honesty < 0.5 * out.honesty.max()
        else:
            blamed = np.zeros(K, dtype=bool) if out.weights is None else out.weights < 0.1 / K
        refused = {int(k) for k in out.excluded}  # type: ignore[call-overload]
        return [k for k in range(K) if blamed[k] or k in refused]

    def _largest(self, ask: Callable[[float], Aggregate | None]) -> tuple[float, Aggregate | None]:
        """The largest share of the strength at which no attacker is accused, by bisection; 0 if there is none."""
        first = self.experiment.clients - self.experiment.adversary.malicious

        def believed(factor: float) -> tuple[bool, Aggregate | None]:
            out = ask(factor)
            return out is not None and not any(k >= first for k in self.accused_clients(out)), out

        fine, out = believed(1.0)
        if fine:
            return 1.0, out
        low, high, updates = 0.0, 1.0, believed(0.0)[1]
        for _ in range(QUESTIONS - 2):
            middle = 0.5 * (low + high)
            fine, out = believed(middle)
            if fine:
                low, updates = middle, out
            else:
                high = middle
        return low, updates

    def search(self, tries: int, rng: np.random.Generator) -> SearchResult:
        """Find the policy with the highest attack success; ties go to the first."""
        if tries < 1:
            raise ValueError(f"tries = {tries}: must be at least 1")
        results: list[CampaignResult] = []
        for number in range(tries):
            if number < max(1, round(DRAWN * tries)):
                policy = self.draw_policy(number, rng)
            else:
                rivals = sorted(results, key=lambda course: -course.value)[:3]
                policy = change_policy(rivals[int(rng.integers(len(rivals)))].policy, rng)
                policy = self._with_role(policy, rng) if rng.random() < 0.15 else policy
            results.append(self.run(policy))
        return SearchResult(max(results, key=lambda course: course.value), tries)

    def draw_policy(self, number: int, rng: np.random.Generator) -> Policy:
        """Draw a policy. The first is the plain backdoor, as far as it is believed; then strengths take turns."""
        ones = np.ones(self.L)
        if number == 0:
            return Policy(1.0, ones)
        some = np.where(rng.random(self.L) < 0.6, np.exp(rng.normal(0.0, 0.5, self.L)), 0.0)
        effort = ones if number % 2 and number < 6 else some if some.any() else ones
        policy = Policy(
            STRENGTHS[number % len(STRENGTHS)], effort, bool(rng.random() < 0.5), bool(rng.random() < 0.7),
            bool(rng.random() < 0.8),
        )  # fmt: skip
        return self._with_role(policy, rng) if rng.random() < 0.3 else policy

    def _with_role(self, policy: Policy, rng: np.random.Generator) -> Policy:
        """The policy with a role for some of the attackers; at least one lies."""
        K, M = self.experiment.clients, self.experiment.adversary.malicious
        if M < 2:
            return policy
        role, spared = ROLES[int(rng.integers(len(ROLES)))], int(rng.integers(1, M))
        return replace(policy, role=role, spared=spared, target=int(rng.integers(K - M)))


def change_policy(policy: Policy, rng: np.random.Generator) -> Policy:
    """A policy close to this one."""
    effort = policy.effort * np.exp(rng.normal(0.0, 0.3, len(policy.effort)))
    if rng.random() < 0.3:
        one = int(rng.integers(len(effort)))
        effort[one] = 0.0 if effort[one] else 1.0
    return replace(
        policy,
        strength=policy.strength * float(np.exp(rng.normal(0.0, 0.4))),
        effort=effort if effort.any() else policy.effort,
        shared=policy.shared if rng.random() < 0.85 else not policy.shared,
        honest=policy.honest if rng.random() < 0.85 else not policy.honest,
        believed=policy.believed if rng.random() < 0.9 else not policy.believed,
    )


def describe(policy: Policy, layers: Mapping[str, int]) -> str:
    """Describe a policy in words, for tables."""
    strongest = [
        name for name, effort in zip(layers, policy.effort, strict=True) if effort >= 0.5 * policy.effort.max()
    ]
    base = "own update" if policy.honest else "honest mean"
    who = "one difference for all" if policy.shared else "own differences"
    limit = "" if policy.believed else ", whether believed or not"
    roles = {"idle": "idle", "mimic": "mimicking", "copies": "copying the first", "honest": "training honestly"}
    others = f", {policy.spared} {roles[policy.role]}" if policy.role and policy.spared else ""
    return f"{policy.strength:.2g} x {who} on the {base}, mostly in {', '.join(strongest[:3])}{others}{limit}"
