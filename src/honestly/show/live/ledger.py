"""The state of the page, with a number for every change: a reader that knows changes up to n gets the later ones.

Nothing is queued. A slow or absent reader costs nothing; when it returns, it gets the latest state and no backlog.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from honestly.show.live.model import Detail, RunRow, Snapshot
from honestly.show.live.progress import progress

Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Cursor:
    """How much a reader knows: all changes of one epoch up to a number.

    >>> Cursor.parse("a1-7"), Cursor.parse("rubbish"), str(Cursor("a1", 7))
    (Cursor(epoch='a1', number=7), None, 'a1-7')
    """

    epoch: str
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.number}"

    @classmethod
    def parse(cls, value: str | None) -> Cursor | None:
        """Parse a cursor that a reader sent; None if it is invalid."""
        epoch, dash, digits = (value or "").partition("-")
        if not dash or not (digits.isascii() and digits.isdigit() and len(digits) < 16):
            return None
        return cls(epoch, int(digits))


@dataclass
class RunRounds:
    """A run's rounds with the number of the last change of each, and of the last time that rounds were dropped."""

    detail: Detail | None = None
    head: dict[str, Any] = field(default_factory=dict[str, Any])
    rounds: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    numbers: list[int] = field(default_factory=list[int])
    head_changed: int = 0
    cut: int = 0

    @property
    def version(self) -> int:
        """The number of the last change."""
        return max(self.head_changed, self.cut, *self.numbers[-1:])

    def after(self, run: str, known: int) -> list[Event]:
        """The events for a reader that knows all changes up to a number."""
        start = next((i for i, n in enumerate(self.numbers) if n > known), len(self.rounds))
        if start == len(self.rounds) and max(self.head_changed, self.cut) <= known:
            return []
        data = {"run": run, "start": start, "rounds": self.rounds[start:]}
        return [("rounds", data | ({"head": self.head} if self.head_changed > known else {}))]


class Ledger:
    """The state of the page. A new epoch begins when something is removed; then every reader starts again."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.epoch = secrets.token_hex(4)
        self.number = 0
        self.head: dict[str, Any] = {}
        self.head_changed = 0
        self.runs: dict[str, tuple[int, RunRow]] = {}
        self.details: dict[str, RunRounds] = {}

    @property
    def cursor(self) -> Cursor:
        """The position of a reader that has seen every change."""
        return Cursor(self.epoch, self.number)

    def take(self, look: Snapshot | None, problem: str, details: Mapping[str, Detail]) -> bool:
        """Update the state from a look at the folder, or from the problem with it. True if anything changed."""
        before = self.cursor
        if look is not None:
            self._take_look(look)
        self._set_head({**self.head, "problem": problem})
        for run, detail in details.items():
            self._take_detail(run, detail)
        return self.cursor != before

    def forget(self, run: str) -> None:
        """Drop the rounds of a run that no reader needs."""
        self.details.pop(run, None)

    def _take_look(self, look: Snapshot) -> None:
        if (self.runs.keys() - {run.id for run in look.runs}) or self.head.get("kind") not in (None, look.kind):
            self._begin()
        changed = [run for run in look.runs if self.runs.get(run.id, (0, None))[1] != run]
        if changed:
            self.number += 1
            self.runs |= {run.id: (self.number, run) for run in changed}
        if changed or "progress" not in self.head:
            self._set_head({"progress": progress(look.runs)})
        self._set_head({"kind": look.kind, "name": look.name})

    def _set_head(self, values: dict[str, Any]) -> None:
        head = {**self.head, **values}
        if head != self.head:
            self.number += 1
            self.head, self.head_changed = head, self.number

    def _take_detail(self, run: str, detail: Detail) -> None:
        history = self.details.setdefault(run, RunRounds())
        if detail is history.detail:  # nothing new was read
            return
        history.detail = detail
        new, head = list(detail.rounds), detail.head()
        same = 0
        while same < min(len(new), len(history.rounds)) and new[same] == history.rounds[same]:
            same += 1
        if same == len(new) == len(history.rounds) and head == history.head:
            return
        self.number += 1
        if same < len(history.rounds):
            history.cut = self.number
        if head != history.head:
            history.head, history.head_changed = head, self.number
        history.rounds = new
        history.numbers = history.numbers[:same] + [self.number] * (len(new) - same)

    def after(self, known: Cursor | None, runs: Mapping[str, Cursor | None]) -> list[Event]:
        """The events that a reader has not seen.

        Args:
            known: its cursor of the overview; None or another epoch if it knows nothing.
            runs: the runs that it needs in detail, each with its cursor.
        """
        anew = known is None or known.epoch != self.epoch
        since = -1 if anew or known is None else known.number
        changed = [run.as_json() for number, run in self.runs.values() if number > since]
        state: dict[str, Any] = {}
        if anew:
            state["anew"] = True
        if self.head_changed > since:
            state["head"] = self.head
        if changed or anew:
            state["runs"] = changed
        events: list[Event] = [("state", state)] if state else []
        for run, mine in runs.items():
            if run in self.details:
                events += self.details[run].after(run, mine.number if mine and mine.epoch == self.epoch else -1)
        return events
