"""The SQLite file of a study: opening, transactions, and errors that say what to do."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILE = "study.sqlite"
SCHEMA = 1
TABLES = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE runs(id TEXT PRIMARY KEY, ordinal INTEGER, cell TEXT, experiment TEXT, status TEXT, worker TEXT, "
    "started REAL, updated REAL, finished REAL, attempts INTEGER, rounds INTEGER, of INTEGER, error TEXT, "
    "summary TEXT, provenance TEXT)",
    "CREATE TABLE rounds(run TEXT, round INTEGER, record TEXT, seconds TEXT, PRIMARY KEY (run, round)) WITHOUT ROWID",
)


class StoreError(OSError):
    """The study's store cannot be used; the message says why and what to do."""


class Database:
    """One connection, usable from several threads; every write is one short transaction."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        self.lock = threading.RLock()

    def __del__(self) -> None:
        """Close a forgotten reader: from Python 3.13 on, an open connection causes a warning."""
        self.connection.close()

    @classmethod
    def create(cls, folder: Path) -> Database:
        """Open the store of a folder for writing; folder and file are created if they are missing."""
        path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{folder} is a file: choose another folder with --out") from error
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot create {folder}: {reason}. Choose a folder that you may write to.") from error
        with name_errors(path):
            connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        database = cls(path, connection)
        try:
            with database.writing():  # in one transaction: two processes may create it at the same time
                if not database.rows("SELECT 1 FROM sqlite_master LIMIT 1"):
                    for table in TABLES:
                        connection.execute(table)
                    connection.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA),))
                database.check()
            with name_errors(path):
                connection.execute("PRAGMA journal_mode = WAL")
                # a round must be on disk before the state that follows it: without FULL, a power cut could undo it
                connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return database

    @classmethod
    def look(cls, folder: Path, *, live: bool = False) -> Database:
        """Open the store of a folder read-only, which also works on a read-only disk.

        ``live`` is for repeated reading: it waits half a second for a lock instead of a minute, and treats a file as
        immutable only if nobody can write it.
        """
        path = folder / FILE
        if not path.is_file():
            raise StoreError(f"no study in {folder} ({FILE} is missing): make one with honestly bench ... --out DIR")
        address = path.resolve().as_uri()
        # SQLite needs a writable folder even to read its log; without a log, nothing can change
        log = path.with_name(FILE + "-wal")
        changes = (log.exists() and log.stat().st_size) or (live and os.access(folder, os.W_OK))
        frozen = "" if changes else "&immutable=1"
        failed: Exception | None = None
        for options in ("mode=ro", f"mode=ro{frozen}"):
            try:
                with name_errors(path):
                    connection = sqlite3.connect(
                        f"{address}?{options}",
                        uri=True,
                        timeout=0.5 if live else 60,
                        isolation_level=None,
                        check_same_thread=False,
                    )
                database = cls(path, connection)
                try:
                    database.check()
                except BaseException:
                    connection.close()
                    raise
                return database
            except StoreError as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def check(self) -> None:
        """Raise StoreError for a database that is not a study, or that a later version wrote."""
        tables = {row[0] for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        rows = self.rows("SELECT value FROM meta WHERE key = 'schema'") if "meta" in tables else []
        if not rows or not {"runs", "rounds"} <= tables:
            raise StoreError(f"{self.path} is a database, but not of a study: choose another folder with --out")
        if rows[0][0] != str(SCHEMA):
            raise StoreError(
                f"{self.path} was written by another version of honestly (schema {rows[0][0]}, this one knows "
                f"{SCHEMA}): update honestly, or choose another folder with --out"
            )

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of a query."""
        with self.lock, name_errors(self.path):
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """A transaction: all or nothing."""
        with self.lock, name_errors(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            self.connection.close()


@contextmanager
def name_errors(path: Path) -> Generator[None]:
    """SQLite's errors as sentences that say what to do."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # names in a damaged schema may be no text
        raise StoreError(_remedy(error, path)) from error


def _remedy(error: Exception, path: Path) -> str:
    why = str(error)
    if "disk is full" in why:
        return f"cannot write {path}: the disk is full. Free some space and run the same command again to resume."
    if "readonly" in why or "unable to open" in why:
        return f"cannot write {path}: {why}. Choose a folder that you may write to with --out."
    if any(words in why for words in ("not a database", "malformed", "disk image", "decode")):
        return (
            f"{path} is damaged or not an SQLite file ({why}): move it away, then recover what is left of it or of a "
            "copy with honestly bench --import"
        )
    if "locked" in why or "busy" in why:
        return f"{path} is locked by another program for more than a minute ({why}): end it, then run the command again"
    return f"{path}: {why}"
