"""The destination of a run's rounds: a folder, a study's store, or memory. Each round is written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from honestly.runs.reader import read_record
from honestly.runs.record import RoundRecord
from honestly.runs.states import States
from honestly.runs.store import Store


class RoundSink(Protocol):
    """What a run writes to. A round is added before the state that follows it, so no state is ahead of the rounds."""

    states: States | None

    def records(self) -> list[RoundRecord]:
        """The stored rounds, from the first one on."""
        ...

    def keep(self, rounds: int) -> None:
        """Drop all rounds after that many."""
        ...

    def add(self, record: RoundRecord, laps: Mapping[str, float]) -> None:
        """Write a round and the durations of its parts. When this returns, they are on disk."""
        ...


class UnsavedRounds:
    """Rounds that are kept in memory only."""

    states: States | None = None

    def records(self) -> list[RoundRecord]:
        """Empty: a run in memory always starts from the beginning."""
        return []

    def keep(self, rounds: int) -> None:
        """Does nothing."""

    def add(self, record: RoundRecord, laps: Mapping[str, float]) -> None:
        """Does nothing: the run itself keeps its rounds."""


class StoreSink:
    """Writes rounds to the store of a study; the run's folder has only the states.

    Args:
        store: the study's.
        id: the run's.
        worker: the name of the worker; `LostClaimError` if another worker has the run now.
    """

    def __init__(self, store: Store, id: str, worker: str) -> None:
        self.store, self.id, self.worker = store, id, worker
        self.states: States | None = States(store.run_folder(id))

    def records(self) -> list[RoundRecord]:
        """The rounds in the store, up to the first missing one."""
        records = [read_record(record)[0] for record in self.store.rounds(self.id)]
        whole = next((n for n, record in enumerate(records) if record.round != n + 1), len(records))
        return records[:whole]

    def keep(self, rounds: int) -> None:
        """Drop all rounds after that many."""
        self.store.keep_rounds(self.id, rounds, worker=self.worker)

    def add(self, record: RoundRecord, laps: Mapping[str, float]) -> None:
        """One transaction."""
        self.store.write_round(self.id, record.as_json(), dict(laps), worker=self.worker)
