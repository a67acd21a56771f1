"""Where the rounds of a run go: a folder, a study's store, or memory. One of them: no round is written twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from honestly.runs.reader import read_record
from honestly.runs.record import RoundRecord
from honestly.runs.states import States
from honestly.runs.store import Store


class RoundSink(Protocol):
    """What a run writes to. A round is added before the state after it is written: no state is ahead of its rounds."""

    states: States | None

    def records(self) -> list[RoundRecord]:
        """The rounds that are there, from the first one on."""
        ...

    def keep(self, rounds: int) -> None:
        """Forget what comes after that many rounds."""
        ...

    def add(self, record: RoundRecord, laps: Mapping[str, float]) -> None:
        """Write a round down, and how long its parts took; when this returns, it is on the disk."""
        ...


class UnsavedRounds:
    """Rounds that are nowhere on a disk."""

    states: States | None = None

    def records(self) -> list[RoundRecord]:
        """None: a run in memory starts anew."""
        return []

    def keep(self, rounds: int) -> None:
        """There is nothing to forget."""

    def add(self, record: RoundRecord, laps: Mapping[str, float]) -> None:
        """The run itself remembers its rounds."""


class StoreSink:
    """Rounds go to the store of a study; the run's folder has the states alone.

    Args:
        store: the study's.
        id: the run's.
        worker: who works on it: a `LostClaimError` says that it is another's now.
    """

    def __init__(self, store: Store, id: str, worker: str) -> None:
        self.store, self.id, self.worker = store, id, worker
        self.states: States | None = States(store.run_folder(id))

    def records(self) -> list[RoundRecord]:
        """The rounds in the store, up to the first that is missing."""
        found = [read_record(record)[0] for record in self.store.rounds(self.id)]
        whole = next((n for n, record in enumerate(found) if record.round != n + 1), len(found))
        return found[:whole]

    def keep(self, rounds: int) -> None:
        """Forget what comes after that many rounds."""
        self.store.keep_rounds(self.id, rounds, worker=self.worker)

    def add(self, record: RoundRecord, laps: Mapping[str, float]) -> None:
        """One transaction."""
        self.store.write_round(self.id, record.as_json(), dict(laps), worker=self.worker)
