"""A study's database, read while others write to it.

It is read every second and a study has hundreds of runs, so unchanged rows are not decoded again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from honestly.runs import store
from honestly.runs.clean import LONGEST_ERROR, fields, number, parse_json, scalar, text, whole_number
from honestly.runs.database import FILE as DATABASE
from honestly.runs.reader import read_record
from honestly.runs.record import RoundRecord
from honestly.show.live.model import Detail, RunRow, Snapshot, SourceError, Status, summary_fields
from honestly.show.live.rounds import detail
from honestly.sim.summary import LAST, summary

__all__ = ["DATABASE", "StudySource"]

KEPT = 48  # runs whose rounds are kept in memory: twice as many as one page can request
# every change of a row shows in one of these columns
COLUMNS = "id, cell, status, worker, updated, attempts, rounds, error, summary"


class StudySource:
    """A study that may be running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: store.Store = self._ask(lambda: store.Store.read(folder, live=True))
        self.file = (folder / DATABASE).stat().st_ino
        self.version = -1
        self.name = ""
        self.rows: dict[str, tuple[tuple[Any, ...], store.Run]] = {}
        self.runs: dict[str, tuple[store.Run, RunRow]] = {}
        self.tails: dict[str, list[RoundRecord]] = {}  # the last records of runs that have no summary
        self.details: dict[str, tuple[store.Run, Detail]] = {}

    def look(self) -> Snapshot:
        """The current state of every run; the database is read only if it has changed."""
        self._still_there()
        version = self._ask(self.store.version)
        if version != self.version:
            rows = [tuple(row) for row in self._rows(f"SELECT {COLUMNS} FROM runs ORDER BY ordinal, id")]
            self.rows = {row[0]: self._row(row) for row in rows}
            self.name = text(self._ask(self.store.meta).get("name") or self.folder.resolve().name, 200)
            self.version = version
        now = time.time()
        self.runs = {id: self._run(row, _status(row, now)) for id, (_, row) in self.rows.items()}
        return Snapshot("study", self.name, tuple(run for _, run in self.runs.values()))

    def detail(self, run: str) -> Detail | None:
        """One run with its rounds."""
        if run not in self.runs:
            return None
        row = self.runs[run][0]
        if run not in self.details or self.details[run][0] is not row:
            while len(self.details) >= KEPT:
                self.details.pop(next(iter(self.details)))
            self.details[run] = (row, detail(self._ask(lambda: self.store.rounds(run)), row.experiment))
        return self.details[run][1]

    def close(self) -> None:
        """Close the database."""
        self.store.close()

    def _still_there(self) -> None:
        """Raise SourceError if the database was deleted or replaced: the open file would still show the old one."""
        try:
            here = (self.folder / DATABASE).stat().st_ino
        except OSError as error:
            raise SourceError(f"{self.folder / DATABASE} was removed: the page shows what was read last") from error
        if here != self.file:
            raise SourceError(f"{self.folder / DATABASE} was replaced: reading the new one")

    def _ask(self, read: Any) -> Any:
        """Call `read`; a damaged database becomes a message for the page."""
        try:
            return read()
        except store.StoreError as error:
            if "locked" in str(error):
                raise SourceError(f"{self.folder / DATABASE} is locked by another program: trying again") from error
            raise SourceError(text(str(error), 1000)) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            where = self.folder / DATABASE
            raise SourceError(f"{where} holds a row that cannot be read ({text(str(error))})") from error

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._ask(lambda: self.store.database.rows(query, values))

    def _row(self, row: tuple[Any, ...]) -> tuple[tuple[Any, ...], store.Run]:
        cached = self.rows.get(row[0])
        return cached if cached and cached[0] == row else (row, self._ask(lambda: self.store.run(row[0])))

    def _run(self, row: store.Run, status: Status) -> tuple[store.Run, RunRow]:
        cached = self.runs.get(row.id)
        if cached is not None and cached[0] is row and cached[1].status == status:
            return cached
        return row, self._ask(lambda: self._run_row(row, status))

    def _run_row(self, row: store.Run, status: Status) -> RunRow:
        numbers = summary(self._tail(row)) if row.summary is None else fields(row.summary)
        rounds = whole_number(row.rounds) or 0
        return RunRow(
            id=text(row.id, 100),
            cell={text(axis, 100): scalar(value) for axis, value in fields(row.cell).items()},
            status=status,
            rounds=rounds,
            of=whole_number(row.of),
            updated=number(row.updated, 0),
            seconds=_seconds_a_round(row, rounds),
            attempts=whole_number(row.attempts) or 0,
            worker=text(row.worker, 100),
            error=text(row.error, LONGEST_ERROR),
            **summary_fields(numbers),
        )

    def _tail(self, row: store.Run) -> list[RoundRecord]:
        """The last records of a run; only new ones are read."""
        records = self.tails.get(row.id, [])
        known = records[-1].round if records else 0
        if known > (row.rounds or 0):  # the run was reset to an earlier round
            records, known = [], 0
        query = "SELECT round, record FROM rounds WHERE run = ? AND round > ? ORDER BY round"
        for n, record in self._rows(query, (row.id, max(known, (row.rounds or 0) - LAST))):
            records.append(replace(read_record(parse_json(record))[0], round=n))
        self.tails[row.id] = records[-LAST:]
        return self.tails[row.id]


def _status(row: store.Run, now: float) -> Status:
    if row.status == store.RUNNING and now - (number(row.updated) or 0.0) > store.LEASE:
        return "stopped"  # its worker has gone silent
    if row.status == store.PENDING and row.rounds:
        return "stopped"
    return next((status for status in get_args(Status) if status == row.status), "pending")


def _seconds_a_round(row: store.Run, rounds: int) -> float | None:
    """The time from the first claim to the last update, per round; it includes the pause of an interrupted run."""
    started, updated = number(row.started), number(row.finished) or number(row.updated)
    if started is None or updated is None or not rounds or row.attempts > 1:
        return None
    return max(round((updated - started) / rounds, 3), 0.001)
