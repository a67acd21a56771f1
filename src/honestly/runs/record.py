"""The record of a round, of a simulation or of a federation's server: the names of all fields are defined here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from honestly.runs.clean import number


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One round of a run. Clients are indices; None means not measured or not known.

    Attributes:
        round: its number, counted from 1 (by some frameworks from 0).
        accuracy, loss, per_class: on the test images, overall and for each class.
        asr: attack success rate, the share of triggered images that are classified as the target.
        attacked: who attacked; nobody knows in a real federation.
        honesty, weights: one for each client, None for one that did not take part.
        excluded, reasons: who was excluded, and why, by the client's name (or index).
        malicious_estimate: how many attackers the rule found.
        accused: the clients that the rule judged to lie; None for a rule that does not judge.
        false_accusations, misses: honest clients that were accused, attackers that were not.
        participants: who took part; None if it was not recorded.
        status, steps: how the aggregation ended, and after how many steps.
        train_loss: mean over the clients.
        clients: the clients' names; None in a simulation, which has none. The fields below are a server's.
        kept: the old model was kept, and `status` says why.
        attention: the round needs attention.
        metrics, evaluation: metrics of training and evaluation that clients reported, averaged.
        seconds: the duration of the decision.
        run, names: what a server calls its run, and clients by their ids; only in the file if they are given.
        spread: median distance of the believed updates from the average.
        staleness: the number of versions by which each participant was late, in an asynchronous federation.
        accusations: why clients were accused, by name (or index), where the rule says so; only in the file if it does.

    Example:
        >>> RoundRecord(round=1, clients=("a", "b"), accused=(1,)).as_json()["accused"]
        ['b']
    """

    round: int
    accuracy: float | None = None
    loss: float | None = None
    asr: float | None = None
    attacked: Sequence[int] = ()
    honesty: Sequence[float | None] | None = None
    weights: Sequence[float | None] | None = None
    excluded: Sequence[int] = ()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    malicious_estimate: float | None = None
    accused: Sequence[int] | None = None
    false_accusations: int | None = None
    misses: int | None = None
    per_class: Sequence[float | None] | None = None
    participants: Sequence[int] | None = None
    status: str = ""
    steps: int = 0
    train_loss: float | None = None
    clients: Sequence[str] | None = None
    kept: bool = False
    attention: bool = False
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    evaluation: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float | None = None
    run: str = ""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    spread: float | None = None
    staleness: Sequence[int] | None = None
    accusations: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def refused(self) -> bool:
        """Whether there was no average: too few clients were usable."""
        return self.status.startswith("refused")

    def as_json(self) -> dict[str, Any]:
        """The record as in the files: lists and plain values in a fixed order, clients by name."""
        values = {name: _plain(getattr(self, name)) for name in (SIMULATED if self.clients is None else SERVED)}
        values |= {name: _plain(getattr(self, name)) for name in LATER if getattr(self, name) is not None}
        if self.clients is not None:
            for name in NAMED:
                values[name] = None if values[name] is None else [self.clients[k] for k in values[name]]
        return values | {name: _plain(value) for name in OPTIONAL if (value := getattr(self, name))}


#: The fields in the order of a simulation's file, and of a server's. Neither may change: records are compared bytewise.
SIMULATED = (
    "round", "accuracy", "loss", "asr", "attacked", "honesty", "weights", "excluded", "reasons", "malicious_estimate",
    "accused", "false_accusations", "misses", "per_class", "participants", "status", "steps", "train_loss",
)  # fmt: skip
SERVED = (
    "round", "accuracy", "asr", "attacked", "participants", "clients", "honesty", "weights", "excluded", "reasons",
    "accused", "malicious_estimate", "kept", "status", "attention", "metrics", "evaluation", "seconds",
)  # fmt: skip
#: Optional fields, after those.
OPTIONAL = ("run", "names", "accusations")
#: Fields of later versions: after those, unless they are None.
LATER = ("spread", "staleness")
#: In the default rule's sentence on an accused client: with which others it errs.
COMPANY = re.compile(r"(?<=same direction as ).*?(?=, most of all in |, over all layers |$)")
#: The two curves of a run, by their names.
ACCURACY, ASR = "accuracy", "asr"
#: Lists of clients that a server's file has as names.
NAMED = ("excluded", "accused")
#: The columns of a table of rounds.
COLUMNS = (
    "round", "accuracy", "loss", "asr", "train_loss", "malicious_estimate", "false_accusations", "misses", "attacked",
    "accused", "excluded", "honesty", "weights", "status", "steps",
)  # fmt: skip
#: Fields with one number per round.
SCALARS = (
    "accuracy", "asr", "loss", "train_loss", "malicious_estimate", "false_accusations", "misses", "steps",
)  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def duration(laps: Mapping[str, Any]) -> float:
    """The duration of a round: the sum of its laps, without its number and its number of images.

    >>> duration({"round": 3, "images": 640, "train": 1.5, "evaluate": 0.5})
    2.0
    """
    return sum(number(v, None) or 0.0 for name, v in laps.items() if name not in ("round", "images"))
