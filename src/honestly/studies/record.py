"""Record the Gram matrices of a federation in training, one for each tensor, for `honestly stress --record`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from honestly.hints import unknown
from honestly.result import Float
from honestly.sim.attacks import ATTACKS, DataAttack, UpdateAttack
from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation
from honestly.sim.settings import override
from honestly.sim.state import RoundPlan
from honestly.sim.train.flat import Layout
from honestly.sim.train.trainer import Model, TrainingResult
from honestly.studies.layers.patterns import most_tolerated
from honestly.studies.recordings import HONEST, Course

DEFAULTS = {
    "rounds": "1,3,10,40", "attack": "label_flip,backdoor", "left_out": "0", "idle": "0", "poisoned": "", "images": "",
}  # fmt: skip
#: The recording in the package: `honestly stress --record src/honestly/studies/digits-layers.npz` with these words.
SHIPPED = ("dataset=digits", "model=cnn,cnn_norm", "left_out=0,8", "rounds=2,40", "seed=7")


@dataclass(frozen=True)
class RecordingPlan:
    """One course to record.

    Attributes:
        experiment: the federation, without attack.
        rounds: the rounds to keep.
        attacks: data attacks; their updates are recorded beside the honest ones and never averaged. One that also
            changes updates, or learns its trigger, does so as in the simulator.
        poisoned: how many of the last clients also train on poisoned data.
        left_out: how many of the last clients are never averaged, so they lag behind.
        idle: how many of the first clients send the model back unchanged.
        images: how many training images are used, the first ones of the data set; None for all.
    """

    experiment: Experiment
    rounds: tuple[int, ...]
    attacks: tuple[str, ...] = ("label_flip", "backdoor")
    poisoned: int = 9
    left_out: int = 0
    idle: int = 0
    images: int | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        K = self.experiment.clients
        for name in self.attacks:
            if name not in ATTACKS or not issubclass(ATTACKS[name], DataAttack):
                known = [name for name, attack in ATTACKS.items() if issubclass(attack, DataAttack)]
                raise ValueError(unknown("data attack", name, known))
        if not 0 <= self.poisoned <= K:
            raise ValueError(f"poisoned = {self.poisoned}: there are {K} clients")
        if self.left_out < 0 or self.idle < 0 or self.left_out + self.idle >= K:
            raise ValueError(f"left_out = {self.left_out}, idle = {self.idle}: one of {K} clients must train")
        if self.images is not None and self.images < K:
            raise ValueError(f"images = {self.images}: give at least one for each of {K} clients")
        if not self.rounds or min(self.rounds) < 1:
            raise ValueError(f"rounds = {list(self.rounds)}: give numbers from 1 on")
        if self.experiment.participation < 1 or self.experiment.dropout > 0:
            raise ValueError("participation and dropout: all clients take part in a recording")

    @property
    def name(self) -> str:
        """A name that distinguishes this course from others."""
        e = self.experiment
        idle = f"-i{self.idle}" if self.idle else ""
        name = f"{e.dataset}-{e.model}-a{e.alpha:g}-o{self.left_out}{idle}-s{e.seed}"
        return re.sub(r"[^\w.+-]", "_", name)[-100:]


def plans(words: Sequence[str]) -> list[RecordingPlan]:
    """Parse words such as `dataset=digits model=cnn,mlp left_out=0,8 rounds=1,10` into courses.

    >>> [plan.name for plan in plans(["alpha=0.1,1", "rounds=1"])]
    ['digits-cnn-a0.1-o0-s0', 'digits-cnn-a1-o0-s0']
    """
    options = dict(DEFAULTS)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ValueError(f"'{word}' is not of the form key=value, such as rounds=1,10 or left_out=8")
        options[key] = value
    own = {key: options.pop(key) for key in DEFAULTS}
    rounds = _integers("rounds", own["rounds"])
    attacks = tuple(name for name in own["attack"].split(",") if name not in ("", "none"))
    courses: list[RecordingPlan] = []
    for values in itertools.product(*(value.split(",") for value in options.values())):
        settings = override({}, [f"{key}={value}" for key, value in zip(options, values, strict=True)])
        e = Experiment.of({**settings, "rule": "mean", "rounds": max(rounds, default=1)})
        poisoned = _integers("poisoned", own["poisoned"]) or (most_tolerated(e.clients),)
        images = (*_integers("images", own["images"]), None)[0]
        for left_out, idle in itertools.product(_integers("left_out", own["left_out"]), _integers("idle", own["idle"])):
            courses.append(RecordingPlan(e, rounds, attacks, poisoned[0], left_out, idle, images))
    names = [plan.name for plan in courses]
    if len(set(names)) < len(names):
        raise ValueError("two courses would have the same name: record them into separate files")
    return courses


def _integers(key: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",") if word)
    except ValueError:
        raise ValueError(f"{key} = {text}: give whole numbers, separated by commas") from None


def record(
    plan: RecordingPlan,
    *,
    folder: Path | str | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Course:
    """Train the federation and keep the Gram matrices of the requested rounds."""
    e, matrices = plan.experiment, dict[int, Float]()
    layout: Layout | None = None
    for t, rows, layout in train_rounds(plan, folder=folder, device=device):
        if rows is not None:
            matrices[t] = grams(rows, layout)
        if progress is not None:
            progress(t, max(plan.rounds))
    assert layout is not None
    sizes = np.array([int(np.prod(shape, dtype=np.int64)) for shape in layout.shapes])
    attacks = plan.attacks if plan.poisoned else ()
    labels = (*(HONEST,) * e.clients, *(name for name in attacks for _ in range(plan.poisoned)))
    return Course(plan.name, layout.names, sizes, labels, matrices, plan.left_out, plan.idle)


def train_rounds(
    plan: RecordingPlan, *, folder: Path | str | None = None, device: str = "cpu"
) -> Iterator[tuple[int, Tensor | None, Layout]]:
    """Train until the last requested round; yield the number of each round, its updates, and the layout of tensors.

    The updates, (n, d), are those of all clients followed by the poisoned ones; None in rounds that are not kept.
    """
    e = plan.experiment
    data = load(e.dataset, folder)
    data = replace(data, images=data.images[: plan.images], labels=data.labels[: plan.images])
    honest = Federation(e, data=data, device=device)
    settings = {**e.model_dump(), "malicious": plan.poisoned}
    groups = [
        Attackers(Federation(Experiment.of({**settings, "attack": name}), data=data, device=device), plan.poisoned)
        for name in (plan.attacks if plan.poisoned else ())
    ]
    layout, model = Layout.of_parameters(honest.module), honest.start().model
    trains = range(plan.idle, e.clients)
    for t in range(1, max(plan.rounds) + 1):
        schedules = [honest.clients.schedule(t, k, attacking=False) for k in trains]
        result = honest.trainer.train(model, schedules)
        updates = torch.cat([torch.zeros_like(result.theta[:1]).expand(plan.idle, -1), result.theta - model.theta])
        if not bool(torch.isfinite(updates).all()):
            raise ValueError(f"{plan.name}: training diverged in round {t}: give a smaller lr= or fewer epochs=")
        rows = [updates]
        for attackers in groups:
            if t in plan.rounds or attackers.learn:
                lies = attackers.send(t, model, updates)
                # a server refuses an update that is not finite: such a client sends its honest one
                fine = torch.isfinite(lies).all(dim=1, keepdim=True)
                rows.append(torch.where(fine, lies, updates[e.clients - plan.poisoned :]))
        yield t, torch.cat(rows) if t in plan.rounds else None, layout
        model = average_updates(
            model, result, updates[: e.clients - plan.left_out], e.clients - plan.left_out - plan.idle
        )


class Attackers:
    """The last clients under one attack: they train beside the honest ones, and nobody averages what they send.

    Arguments:
        federation: the federation with the attack.
        count: how many they are.
    """

    def __init__(self, federation: Federation, count: int) -> None:
        self.federation, self.state = federation, federation.start()
        self.attacking = np.arange(federation.experiment.clients) >= federation.experiment.clients - count
        #: whether they take something from round to round, so they train in every one
        self.learn = federation.painter is not None or isinstance(federation.attack, UpdateAttack)

    def send(self, round: int, model: Model, honest: Tensor) -> Tensor:
        """(M, d) their updates to this model, as in a simulated round; ``honest`` are those of all clients, (K, d)."""
        federation = self.federation
        K, mine = len(self.attacking), torch.as_tensor(self.attacking, device=honest.device)
        schedules = [federation.clients.schedule(round, k, attacking=bool(self.attacking[k])) for k in range(K)]
        plan = RoundPlan(round, list(range(K)), self.attacking, schedules)
        state = replace(self.state, round=round - 1, model=model)
        if federation.painter is not None:
            state = replace(state, attack=federation.painter.ready(state, plan))
        theta = model.theta + honest
        theta[mine] = federation.trainer.train(model, [schedules[k] for k in np.flatnonzero(self.attacking)]).theta
        sent, memory = federation.forge(state, plan, theta)
        self.state = replace(state, attack=memory)
        return sent[mine] - model.theta


def average_updates(model: Model, trained: TrainingResult, updates: Tensor, training: int) -> Model:
    """The next model: the plain mean of these updates; buffers are those of the clients among them who trained."""
    statistics, counters = model.statistics, model.counters
    if trained.statistics.shape[1]:
        statistics = trained.statistics[:training].double().mean(dim=0).to(statistics.dtype)
    if trained.counters.shape[1]:
        counters = trained.counters.mode(dim=0).values
    theta = model.theta + updates.double().mean(dim=0).to(model.theta.dtype)
    return replace(model, theta=theta, statistics=statistics, counters=counters)


def grams(rows: Tensor, layout: Layout) -> Float:
    """(L, n, n) inner products of the rows in each tensor of the layout."""
    products: list[Float] = []
    for start, shape in zip(layout.starts, layout.shapes, strict=True):
        part = rows[:, start : start + int(np.prod(shape, dtype=np.int64))].double()
        products.append((part @ part.T).cpu().numpy())
    return np.stack(products)
