"""A study's database as the page sees it, read while others write to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, get_args

from honestly.bench import store
from honestly.bench.database import FILE as DATABASE
from honestly.bench.web.clean import LONGEST_ERROR, fields, number, parsed, text, whole
from honestly.bench.web.model import Detail, Look, Run, SourceError, Status
from honestly.bench.web.rounds import detail
from honestly.sim.summary import LAST, summary

__all__ = ["DATABASE", "StudySource"]


class StudySource:
    """A study that somebody may be working on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = self._told(lambda: store.Store.read(folder))
        self.file = (folder / DATABASE).stat().st_ino
        self.version = -1
        self.name = ""
        self.rows: list[store.Run] = []
        self.latest: dict[str, tuple[int, dict[str, Any]]] = {}  # of runs without a summary: rounds, numbers

    def look(self) -> Look:
        """Every run as it is now; the database is read only if somebody has written to it."""
        self._still_there()
        version = self._told(self.store.version)
        if version != self.version:
            self.rows = self._told(self.store.runs)
            self.name = text(self._told(self.store.meta).get("name") or self.folder.resolve().name, 200)
            self.version = version
        now = time.time()
        return Look("study", self.name, tuple(self._run(row, now) for row in self.rows))

    def detail(self, run: str) -> Detail | None:
        """One run with its rounds."""
        row = next((row for row in self.rows if row.id == run), None)
        return None if row is None else detail(self._told(lambda: self.store.rounds(run)), row.experiment)

    def close(self) -> None:
        """Let go of the database."""
        self.store.close()

    def _still_there(self) -> None:
        """A database that was deleted or replaced is still readable through the open file: nobody wants that one."""
        try:
            here = (self.folder / DATABASE).stat().st_ino
        except OSError as error:
            raise SourceError(f"{self.folder / DATABASE} was removed: the page shows what was read last") from error
        if here != self.file:
            raise SourceError(f"{self.folder / DATABASE} was replaced: reading the new one")

    def _told(self, read: Any) -> Any:
        """What `read` gives; a damaged database becomes a message for the page."""
        try:
            return read()
        except store.StoreError as error:
            raise SourceError(text(str(error), 1000)) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise SourceError(
                f"{self.folder / DATABASE} holds a row that cannot be read ({text(str(error))})"
            ) from error

    def _run(self, row: store.Run, now: float) -> Run:
        numbers = fields(row.summary) or self._latest(row)
        rounds, of = whole(row.rounds) or 0, whole(row.of)
        return Run(
            id=text(row.id, 100),
            cell={text(axis, 100): _scalar(value) for axis, value in fields(row.cell).items()},
            status=_status(row, now),
            rounds=rounds,
            of=of,
            updated=number(row.updated, 0),
            seconds=_seconds_a_round(row, rounds),
            attempts=whole(row.attempts) or 0,
            worker=text(row.worker, 100),
            error=text(row.error, LONGEST_ERROR),
            accuracy=number(numbers.get("accuracy_last")),
            mean20=number(numbers.get("accuracy_mean_last_20")),
            asr=number(numbers.get("asr_last")),
            false_accusations=number(numbers.get("false_accusations_per_round")),
            misses=number(numbers.get("misses_per_round")),
        )

    def _latest(self, row: store.Run) -> dict[str, Any]:
        """The numbers of a run that has no summary yet, from its last rounds."""
        if not row.rounds:
            return {}
        rounds, numbers = self.latest.get(row.id, (-1, {}))
        if rounds != row.rounds:
            query = "SELECT record FROM rounds WHERE run = ? ORDER BY round DESC LIMIT ?"
            found = self._told(lambda: self.store.database.rows(query, (row.id, LAST)))
            numbers = self._told(lambda: summary([fields(parsed(record)) for (record,) in reversed(found)]))
            self.latest[row.id] = (row.rounds, numbers)
        return numbers


def _status(row: store.Run, now: float) -> Status:
    if row.status == store.RUNNING and now - (number(row.updated) or 0.0) > store.LEASE:
        return "stopped"  # its worker is not heard of any more
    if row.status == store.PENDING and row.rounds:
        return "stopped"
    return next((status for status in get_args(Status) if status == row.status), "pending")


def _seconds_a_round(row: store.Run, rounds: int) -> float | None:
    """From the first claim to the last news; a run that was interrupted would count its pause."""
    started, updated = number(row.started), number(row.finished) or number(row.updated)
    if started is None or updated is None or not rounds or row.attempts > 1:
        return None
    return max(round((updated - started) / rounds, 3), 0.001)


def _scalar(value: Any) -> Any:
    return (
        value
        if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53)
        else (found if (found := number(value, 9)) is not None else text(value, 100))
    )
