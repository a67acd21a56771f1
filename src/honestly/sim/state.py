"""A round before and after it happens: where a run stands, the plan of a round, and its record."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from honestly.engine import Pipeline
from honestly.federation.server import ServerStep
from honestly.rules.rule import Rule
from honestly.runs.record import RoundRecord
from honestly.sim.adversary import Mask
from honestly.sim.attacks.vectors import DrawnAhead
from honestly.sim.train.schedule import Schedule
from honestly.sim.train.trainer import Model


@dataclass(frozen=True)
class State:
    """Where a run stands: the number of finished rounds, the global model, and the steps with what they remember.

    `server` is the server's optimiser with its moments; it is never changed, the next state has one of its own.
    """

    round: int
    model: Model
    pipeline: Pipeline
    past: tuple[Model, ...] = ()  # the models before, newest first, if clients may be late
    server: ServerStep | None = None
    #: what the attackers remember, see `UpdateAttack.remember`
    attack: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def rule(self) -> Rule:
        """The rule as it stands."""
        return self.pipeline.rule


@dataclass(frozen=True)
class Record:
    """What happened in a round. ``found`` is the same in every run of the experiment; ``seconds`` is not."""

    found: RoundRecord
    seconds: dict[str, float]
    images: int
    state: State = field(repr=False)

    @property
    def numbers(self) -> dict[str, Any]:
        """What was found as plain values, as in a line of ``rounds.jsonl``."""
        return self.found.as_json()

    @property
    def laps(self) -> dict[str, float]:
        """How long each part took, and how many images were trained on, as recorded."""
        return {"images": self.images, **{name: round(v, 6) for name, v in self.seconds.items()}}


@dataclass(frozen=True)
class RoundPlan:
    """A round before it happens.

    Attributes:
        round: its number.
        clients: who takes part.
        attacking: which of them attack.
        schedules: what each of them trains.
        root: what the server trains, for a rule that needs it.
        late: how many rounds late each of them is, if clients may be late.
        sizes: the sizes that they report, if they do.
        noise: standard normal numbers for the attackers, see `UpdateAttack.noise_ahead`.
    """

    round: int
    clients: list[int]
    attacking: Mask
    schedules: list[Schedule]
    root: Schedule | None = None
    late: list[int] | None = None
    sizes: list[int] | None = None
    noise: DrawnAhead | None = field(default=None, repr=False)


def apply_server(state: State, average: Model) -> tuple[Model, ServerStep | None]:
    """The next model and the server's optimiser after it; the average itself if the step is not finite."""
    if state.server is None:
        return average, None
    server = copy.deepcopy(state.server)
    try:
        theta = server.next({"theta": state.model.theta}, {"theta": average.theta})["theta"]
    except FloatingPointError:
        return average, state.server
    return replace(average, theta=theta), server
