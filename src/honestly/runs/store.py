"""The store of a study: one SQLite file, one row per run and one per round, written by several processes at once.

A run is `pending`, `running` (a worker holds it and reports every few seconds), `done` or `failed`. A worker that is
silent for a minute loses its run: the next worker resumes it from the stored rounds and the states in its folder,
`DIR/runs/ID`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

from honestly.runs.database import StoreError
from honestly.runs.rows import (
    COLUMNS,
    DONE,
    FAILED,
    JSON_COLUMNS,
    PENDING,
    RUNNING,
    PlannedRun,
    Run,
    canonical,
    decode_object,
    insert_rounds,
    run_of,
)
from honestly.runs.stored import StoredStudy
from honestly.runs.text import compact

__all__ = ["LostClaimError", "PlannedRun", "Run", "Store", "StoreError"]

LEASE = 60.0  # seconds after which a silent worker loses its run
ATTEMPTS = 3  # how many workers may die with a run before it counts as failed


class LostClaimError(RuntimeError):
    """Another worker has the run now; the worker that gets this error must stop."""


class Store(StoredStudy):
    """The runs and rounds of one study, and how the study and its workers change them."""

    # -- the study ----------------------------------------------------------------------------------------------

    def set_meta(self, **values: str) -> None:
        """Store information about the whole study."""
        with self.database.writing() as db:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def add(self, entries: Sequence[PlannedRun], *, replace: bool = False) -> None:
        """Add the runs of a study; runs that are already there keep their rounds.

        It is an error if a cell exists with another experiment, because its numbers would not belong to this study.
        ``replace`` drops such runs, and all runs that are no longer part of the study.
        """
        wanted = {e.id: e for e in entries}
        with self.database.writing() as db:
            rows = db.execute("SELECT id, cell, status, rounds FROM runs").fetchall()
            cells = {json.dumps(e.cell, sort_keys=True) for e in entries}
            stale = [row for row in rows if row[0] not in wanted]
            clash = [row for row in stale if json.dumps(decode_object(row[1], "a cell"), sort_keys=True) in cells]
            old = [row for row in clash if row[2] in (DONE, RUNNING) or row[3]]
            if old and not replace:
                raise StoreError(
                    f"{self.folder} holds {len(old)} run(s) of an earlier form of this study, such as {old[0][1]} "
                    "with other settings: choose another folder with --out, or drop them with --replace"
                )
            dropped = stale if replace else [row for row in stale if row in clash or (row[2] == PENDING and not row[3])]
            for row in dropped:
                db.execute("DELETE FROM runs WHERE id = ?", (row[0],))
                db.execute("DELETE FROM rounds WHERE run = ?", (row[0],))
            for ordinal, e in enumerate(entries):
                cell = compact(e.cell)
                db.execute(
                    "INSERT INTO runs(id, ordinal, cell, experiment, status, attempts, rounds, of) "
                    "VALUES (?, ?, ?, ?, 'pending', 0, 0, ?) "
                    "ON CONFLICT(id) DO UPDATE SET ordinal = excluded.ordinal, cell = excluded.cell",
                    (e.id, ordinal, cell, e.experiment, e.of),
                )
            needs = {e.id: e.needs for e in entries if e.needs is not None}
            db.execute("INSERT OR REPLACE INTO meta VALUES ('needs', ?)", (compact(needs),))

    def put(self, run: Run, records: Sequence[dict[str, Any]], seconds: Sequence[dict[str, Any]]) -> None:
        """Add a run from another store with its rounds, replacing the one here."""
        values = {f.name: getattr(run, f.name) for f in fields(Run)}
        for name in JSON_COLUMNS:
            values[name] = None if values[name] is None else compact(values[name])
        values["experiment"] = canonical(run.experiment)
        with self.database.writing() as db:
            marks = ", ".join("?" for _ in values)
            db.execute(f"INSERT OR REPLACE INTO runs({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
            db.execute("DELETE FROM rounds WHERE run = ?", (run.id,))
            insert_rounds(db, run.id, records, seconds)

    def fill(self, id: str, records: Sequence[dict[str, Any]], seconds: Sequence[dict[str, Any]]) -> int:
        """Add missing rounds of a finished run; returns their number."""
        with self.database.writing() as db:
            if not db.execute("SELECT 1 FROM runs WHERE id = ? AND status = 'done'", (id,)).fetchone():
                return 0
            return insert_rounds(db, id, records, seconds, how="IGNORE")

    # -- workers ----------------------------------------------------------------------------------------

    def claim(self, worker: str, *, among: Collection[str] | None = None) -> Run | None:
        """Claim the next run, in the study's order, for a worker with a unique name; None if there is none now."""
        now = time.time()
        with self.database.writing() as db:
            needs = self.needs()
            ended = dict(db.execute("SELECT id, status FROM runs WHERE status IN ('done', 'failed')").fetchall())
            free = db.execute(
                f"SELECT {COLUMNS} FROM runs WHERE status = 'pending' OR (status = 'running' AND updated < ?) "
                "ORDER BY ordinal, id",
                (now - LEASE,),
            )
            for row in free.fetchall():
                run = run_of(row)
                before = ended.get(needs[run.id]) if run.id in needs else DONE
                if before is None or (among is not None and run.id not in among):
                    continue
                if before == FAILED or run.attempts >= ATTEMPTS:
                    died = f"its worker died {run.attempts} times (out of memory?); the last one was {run.worker}"
                    self._give_up(
                        db, run, died if before == DONE else f"the run that it starts from, {needs[run.id]}, failed"
                    )
                    continue
                db.execute(
                    "UPDATE runs SET status = 'running', worker = ?, started = COALESCE(started, ?), updated = ?, "
                    "finished = NULL, error = NULL, attempts = attempts + 1 WHERE id = ?",
                    (worker, now, now, run.id),
                )
                break
            else:
                return None
        return self.run(run.id)

    def _give_up(self, db: Any, run: Run, error: str) -> None:
        now = time.time()
        db.execute(
            "UPDATE runs SET status = 'failed', error = ?, finished = ?, updated = ? WHERE id = ?",
            (error, now, now, run.id),
        )

    def heartbeat(self, worker: str) -> None:
        """Report that this worker is alive, and the tasks of a cluster whose names begin with its name and a dash."""
        with self.database.writing() as db:
            db.execute(
                "UPDATE runs SET updated = ? WHERE status = 'running' "
                "AND (worker = ? OR substr(worker, 1, length(?) + 1) = ? || '-')",
                (time.time(), worker, worker, worker),
            )

    def release(self, worker: str, *, died: bool = False) -> int:
        """Release the runs of this worker, so others can resume them; returns their number.

        If the worker ``died``, this counts as an attempt, so a run that kills every worker ends as failed.
        """
        with self.database.writing() as db:
            return db.execute(
                "UPDATE runs SET status = 'pending', attempts = max(0, attempts - ?) "
                "WHERE worker = ? AND status = 'running'",
                (0 if died else 1, worker),
            ).rowcount

    def retry(self, ids: Iterable[str]) -> int:
        """Allow failed runs to be tried again; returns their number."""
        with self.database.writing() as db:
            return sum(
                db.execute(
                    "UPDATE runs SET status = 'pending', attempts = 0, error = NULL, finished = NULL "
                    "WHERE id = ? AND status = 'failed'",
                    (id,),
                ).rowcount
                for id in ids
            )

    def write_round(
        self, id: str, record: dict[str, Any], seconds: dict[str, Any] | None = None, *, worker: str | None = None
    ) -> None:
        """Write a finished round, replacing an earlier record of it.

        With ``worker``, raises `LostClaimError` if another worker has the run now.
        """
        self.write_rounds(id, [record], [seconds or {}], worker=worker)

    def write_rounds(
        self,
        id: str,
        records: Sequence[dict[str, Any]],
        seconds: Sequence[dict[str, Any]],
        *,
        worker: str | None = None,
    ) -> None:
        """Several rounds at once."""
        with self.database.writing() as db:
            insert_rounds(db, id, records, seconds)
            # a run that makes progress does not kill its workers: reset its attempts to 1
            changes = "attempts = CASE WHEN rounds < :last THEN 1 ELSE attempts END, rounds = :last"
            _update(db, id, worker, changes, last=records[-1]["round"] if records else 0)

    def keep_rounds(self, id: str, rounds: int, *, worker: str | None = None) -> None:
        """Drop all rounds after that many: the run resumes from an earlier state."""
        with self.database.writing() as db:
            db.execute("DELETE FROM rounds WHERE run = ? AND round > ?", (id, rounds))
            _update(db, id, worker, "rounds = :last", last=rounds)

    def finish(
        self, id: str, summary: dict[str, Any], provenance: dict[str, Any], *, worker: str | None = None
    ) -> None:
        """Mark the run as done."""
        self._end(id, worker, DONE, None, compact(summary), compact(provenance))

    def fail(self, id: str, error: str, provenance: dict[str, Any] | None = None, *, worker: str | None = None) -> None:
        """Mark the run as failed, with the error."""
        self._end(id, worker, FAILED, error, None, None if provenance is None else compact(provenance))

    def _end(
        self, id: str, worker: str | None, status: str, error: str | None, summary: str | None, provenance: str | None
    ) -> None:
        ending = "status = :status, finished = :now, error = :error, summary = :summary, provenance = :provenance"
        with self.database.writing() as db:
            _update(db, id, worker, ending, status=status, error=error, summary=summary, provenance=provenance)


def _update(db: Any, id: str, worker: str | None, changes: str, **values: Any) -> None:
    """Change a run; with ``worker``, only while that worker has it."""
    mine = "" if worker is None else "AND worker = :worker AND status = 'running'"
    changed = db.execute(
        f"UPDATE runs SET {changes}, updated = :now WHERE id = :id {mine}",
        {**values, "now": time.time(), "id": id, "worker": worker},
    )
    if changed.rowcount == 0:
        raise LostClaimError(f"run {id[:12]} no longer belongs to this worker")
