"""The data of the page: the runs of a study or federation, and one run in detail, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from honestly.runs.clean import number
from honestly.sim.summary import LAST

Status = Literal["pending", "running", "done", "failed", "stopped"]
STATUSES: tuple[Status, ...] = ("pending", "running", "done", "failed", "stopped")


@dataclass(frozen=True)
class RunRow:
    """One run in the overview.

    Attributes:
        id: the experiment's id, or the name of the run's folder.
        cell: axis name -> value: the position of the run in a table.
        status: a "stopped" run was started, but no process works on it.
        rounds, of: the number of finished rounds, and of all rounds (None if unknown).
        updated: when it last changed, in seconds since 1970.
        seconds: the duration of a round, None while it is unknown.
        accuracy, mean20, asr: the latest values, and the mean accuracy of the last 20 rounds, if there are as many.
    """

    id: str
    cell: dict[str, Any]
    status: Status
    rounds: int = 0
    of: int | None = None
    updated: float | None = None
    seconds: float | None = None
    attempts: int = 0
    worker: str = ""
    error: str = ""
    accuracy: float | None = None
    mean20: float | None = None
    asr: float | None = None
    false_accusations: float | None = None
    misses: float | None = None

    def __post_init__(self) -> None:
        if self.rounds < LAST:
            object.__setattr__(self, "mean20", None)

    def as_json(self) -> dict[str, Any]:
        """The run as plain values without empty fields, because a study has hundreds of runs."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {key: value for key, value in values.items() if value not in (None, "") or key == "of"}


def summary_fields(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that a run's summary has; what is not a number there is None."""
    return {
        "accuracy": number(numbers.get("accuracy_last")),
        "mean20": number(numbers.get("accuracy_mean_last_20")),
        "asr": number(numbers.get("asr_last")),
        "false_accusations": number(numbers.get("false_accusations_per_round")),
        "misses": number(numbers.get("misses_per_round")),
    }


@dataclass(frozen=True)
class Snapshot:
    """The state of the folder at one time."""

    kind: Literal["study", "federation", "folder"]
    name: str
    runs: tuple[RunRow, ...]


@dataclass(frozen=True)
class Detail:
    """One run with its rounds.

    Attributes:
        clients: the number of clients; `shown` are the indices of those that are sent.
        names: the names of the clients; None if they have none.
        belief: what the rule says about a client: its honesty, its weight, or nothing.
        weights: whether weights are sent beside honesty.
        truth: whether it is known who attacked (in a real federation nobody knows).
        settings: the experiment, as text.
        rounds: see `honestly.show.live.rounds`.
    """

    clients: int
    shown: tuple[int, ...]
    names: tuple[str, ...] | None
    belief: Literal["honesty", "weight"] | None
    truth: bool
    weights: bool = False
    settings: dict[str, str] = field(default_factory=dict[str, str])
    rounds: tuple[dict[str, Any], ...] = ()

    def head(self) -> dict[str, Any]:
        """Everything but the rounds."""
        return {key: value for key, value in asdict(self).items() if key != "rounds"}


class SourceError(Exception):
    """The folder cannot be read at the moment; the page shows the message."""
