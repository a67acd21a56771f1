"""The rows of a study's store as values, and how they are written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from honestly.runs.database import StoreError
from honestly.runs.text import compact

PENDING, RUNNING, DONE, FAILED = "pending", "running", "done", "failed"


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study wants: its cell, its experiment, and the run that must be done before it (a warm-up)."""

    id: str
    cell: dict[str, Any]
    experiment: str
    of: int
    needs: str | None = None


@dataclass(frozen=True)
class Run:
    """A row of the table of runs."""

    id: str
    ordinal: int
    cell: dict[str, Any]
    experiment: dict[str, Any]
    status: str
    worker: str | None
    started: float | None
    updated: float | None
    finished: float | None
    attempts: int
    rounds: int
    of: int
    error: str | None
    summary: dict[str, Any] | None
    provenance: dict[str, Any] | None


COLUMNS = ", ".join(f.name for f in fields(Run))
JSON_COLUMNS = ("cell", "experiment", "summary", "provenance")


def run_of(row: Sequence[Any]) -> Run:
    """A row of the table, decoded."""
    values = {f.name: value for f, value in zip(fields(Run), row, strict=True)}
    for name, value in values.items():
        if isinstance(value, bytes):
            raise StoreError(f"the study is damaged: {name} of a run is {value[:40]!r}, not text; restore a copy of it")
    for name in JSON_COLUMNS:
        if values[name] is not None or name in ("cell", "experiment"):
            values[name] = decode_object(values[name], f"{name} of run {str(values['id'])[:12]!r}")
    return Run(**values)


def decode_object(text: Any, what: str) -> dict[str, Any]:
    """A JSON object of the store. Raises StoreError if there is something else."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StoreError(f"the study is damaged: {what} is {str(text)[:40]!r}, not a JSON object; restore a copy of it")
    return cast("dict[str, Any]", value)


def canonical(experiment: dict[str, Any]) -> str:
    """The text whose hash is the id of an experiment."""
    return json.dumps(experiment, sort_keys=True, separators=(",", ":"), allow_nan=False)


def insert_rounds(
    db: sqlite3.Connection, id: str, records: Sequence[Any], seconds: Sequence[Any], *, how: str = "REPLACE"
) -> int:
    """Write rounds within a transaction; returns how many were new or changed."""
    rows = [(id, r["round"], compact(r), compact(laps)) for r, laps in zip(records, seconds, strict=True)]
    return max(0, db.executemany(f"INSERT OR {how} INTO rounds VALUES (?, ?, ?, ?)", rows).rowcount)
