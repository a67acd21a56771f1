"""What the store of a study holds, for readers: the runs, their rounds, and what is known of the study itself."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

from honestly.runs.database import Database
from honestly.runs.rows import COLUMNS, Run, decode_object, run_of


class StoredStudy:
    """The runs and rounds of one study, to be read."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open the store of a folder; it is created if it is missing."""
        return cls(Path(folder), Database.create(Path(folder)))

    @classmethod
    def read(cls, folder: Path | str, *, live: bool = False) -> Self:
        """Open the store of a folder read-only; ``live`` for repeated reading."""
        return cls(Path(folder), Database.look(Path(folder), live=live))

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_folder(self, id: str) -> Path:
        """The folder with the states of a run."""
        return self.folder / "runs" / id

    def meta(self) -> dict[str, str]:
        """Information about the whole study: schema, name, study (its TOML text), created."""
        rows = self.database.rows("SELECT key, value FROM meta")
        return {key: value for key, value in rows if isinstance(value, str)}

    def runs(self) -> list[Run]:
        """All runs, in the study's order."""
        return [run_of(row) for row in self.database.rows(f"SELECT {COLUMNS} FROM runs ORDER BY ordinal, id")]

    def run(self, id: str) -> Run:
        """The run of that id."""
        rows = self.database.rows(f"SELECT {COLUMNS} FROM runs WHERE id = ?", (id,))
        if not rows:
            raise KeyError(f"no run {id!r} in {self.folder}")
        return run_of(rows[0])

    def rounds(self, id: str) -> list[dict[str, Any]]:
        """The simulator's records of a run, in their order."""
        rows = self.database.rows("SELECT record FROM rounds WHERE run = ? ORDER BY round", (id,))
        return [decode_object(record, f"a round of run {id[:12]!r}") for (record,) in rows]

    def timed_rounds(self, id: str) -> list[tuple[dict[str, Any], dict[str, float]]]:
        """The records of a run with the durations of their parts; two queries may differ, for a run goes on."""
        rows = self.database.rows("SELECT record, seconds FROM rounds WHERE run = ? ORDER BY round", (id,))
        what, when = f"a round of run {id[:12]!r}", f"the times of run {id[:12]!r}"
        return [(decode_object(record, what), decode_object(laps, when) if laps else {}) for record, laps in rows]

    def last_round(self, id: str) -> dict[str, Any] | None:
        """The latest record of a run."""
        rows = self.database.rows("SELECT record FROM rounds WHERE run = ? ORDER BY round DESC LIMIT 1", (id,))
        return decode_object(rows[0][0], f"the last round of run {id[:12]!r}") if rows else None

    def seconds(self, id: str) -> list[dict[str, float]]:
        """How long each round of a run took, by part."""
        rows = self.database.rows("SELECT seconds FROM rounds WHERE run = ? ORDER BY round", (id,))
        return [decode_object(laps, f"the times of run {id[:12]!r}") if laps else {} for (laps,) in rows]

    def count_open(self, ids: Collection[str]) -> int:
        """How many of these runs have not ended."""
        rows = self.database.rows("SELECT id FROM runs WHERE status IN ('pending', 'running')")
        return sum(id in ids for (id,) in rows)

    def version(self) -> int:
        """A number that changes when another connection has written."""
        return int(self.database.rows("PRAGMA data_version")[0][0])

    def needs(self) -> dict[str, str]:
        """Which run must be done before which, by id."""
        rows = self.database.rows("SELECT value FROM meta WHERE key = 'needs'")
        needs = decode_object(rows[0][0], "what needs what") if rows else {}
        return {id: before for id, before in needs.items() if isinstance(before, str)}
