"""A study's results as files for other programs: CSV and JSON lines of runs and rounds, and the study as an archive."""

from __future__ import annotations

import contextlib
import gzip
import io
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from honestly.runs.clean import parse_json
from honestly.runs.database import FILE, name_errors
from honestly.runs.reader import read_record
from honestly.runs.record import COLUMNS, duration
from honestly.runs.rows import Run
from honestly.runs.states import States
from honestly.runs.store import Store
from honestly.runs.text import compact, csv_cell, csv_text, json_value
from honestly.runs.writing import write_file

TRIES = 100  # to read the state of a run in progress
KINDS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")


def export(store: Store, what: str, path: Path) -> int:
    """Write the ``runs`` or the ``rounds`` of a study to a file, by its ending; returns the number of rows."""
    kind = next((kind for kind in KINDS if path.name.endswith(kind)), None)
    if kind is None:
        raise ValueError(f"{path}: the ending must be one of {', '.join(KINDS)}")
    lines = kind.startswith(".jsonl")
    if what == "runs":
        rows = _run_lines(store) if lines else run_rows(store)
    else:
        rows = _round_lines(store) if lines else round_rows(store)
    table = list(rows)
    text = "".join(compact(json_value(row)) + "\n" for row in table) if lines else _csv(table)
    content = text.encode()
    write_file(path, gzip.compress(content, mtime=0) if kind.endswith(".gz") else content)
    return len(table)


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return csv_text(
        [csv_cell(column) for column in columns], ([csv_cell(row.get(column)) for column in columns] for row in rows)
    )


def run_rows(store: Store) -> Iterator[dict[str, Any]]:
    """One flat row per run: its cell, its summary and its provenance."""
    for run in store.runs():
        summary = {k: v for k, v in (run.summary or {}).items() if k != "rounds"}
        origin = {k: v for k, v in (run.provenance or {}).items() if k not in run.cell}
        seconds = sum(map(duration, store.seconds(run.id)))
        yield {
            "id": run.id, **run.cell, "status": run.status, "rounds": run.rounds, "of": run.of, **summary,
            "seconds": round(seconds, 3), **origin, "error": run.error,
        }  # fmt: skip


def round_rows(store: Store) -> Iterator[dict[str, Any]]:
    """One flat row per round."""
    for run, record, laps in _rounds(store):
        numbers = read_record(record)[0].as_json()
        cells = {column: numbers.get(column) for column in COLUMNS}  # a stranger's may be of a server
        yield {"run": run.id, **run.cell, **cells, "seconds": round(duration(laps), 6)}


def _rounds(store: Store) -> Iterator[tuple[Run, dict[str, Any], dict[str, Any]]]:
    for run in store.runs():
        for record, laps in store.timed_rounds(run.id):
            yield run, record, laps


def _run_lines(store: Store) -> Iterable[dict[str, Any]]:
    return ({**asdict(run), "worker": None} for run in store.runs())


def _round_lines(store: Store) -> Iterable[dict[str, Any]]:
    return ({"run": run.id, "record": record, "seconds": laps} for run, record, laps in _rounds(store))


def archive(store: Store, path: Path) -> int:
    """The whole study in one file, with what unfinished runs need to resume elsewhere; returns the number of those."""
    if not path.name.endswith((".tar.gz", ".tgz")):
        raise ValueError(f"{path}: a study is exported as .tar.gz")
    wanted = starts(store)
    # States come before the database: none of a run in progress is then ahead of the rounds there.
    states = {run.id: latest_state(store, run) for run in store.runs() if run.status != "done" or run.id in wanted}
    carried = {f"runs/{id}/{name}": content for id, (name, content) in states.items() if name}
    with tempfile.TemporaryDirectory() as temporary:
        database, packed = Path(temporary) / FILE, io.BytesIO()
        copy(store, database)
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(database, FILE, filter=_nobody)
            for name, content in carried.items():
                member = _nobody(tarfile.TarInfo(name))
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    write_file(path, gzip.compress(packed.getvalue(), mtime=0))  # the same study gives the same bytes
    return len(carried)


def latest_state(store: Store, run: Run) -> tuple[str, bytes]:
    """The name and the content of the latest state that is not ahead of the run's rounds; ("", b"") if there is none.

    A run in progress removes older states at any moment: then look again.
    """
    states = States(store.run_folder(run.id))
    for _ in range(TRIES):
        if (latest := states.latest(run.rounds)) is None:
            break
        try:
            return states.path(latest).name, states.path(latest).read_bytes()
        except FileNotFoundError:
            run = store.run(run.id)
    return "", b""


def starts(store: Store) -> set[str]:
    """The runs whose models are the start of runs that are not done yet."""
    done = {run.id for run in store.runs() if run.status == "done"}
    return {before for id, before in store.needs().items() if id not in done}


def copy(store: Store, path: Path) -> None:
    """The study's database as it stands now, also while others write to it; no run of the copy is claimed.

    The file is rewritten, so the same rows give the same bytes, whatever was deleted before.
    """
    with (
        tempfile.TemporaryDirectory() as temporary,
        contextlib.closing(sqlite3.connect(Path(temporary) / FILE)) as raw,
        name_errors(store.database.path),  # it may be damaged
    ):
        store.database.connection.backup(raw)
        raw.execute("UPDATE runs SET worker = NULL")
        raw.commit()
        raw.execute("VACUUM INTO ?", (str(path),))


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and date from an entry, so the same study gives the same bytes."""
    member.mtime = 0
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, packed or not; ValueError names the first invalid line."""
    opened: Any = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                value = parse_json(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
            if not isinstance(value, dict):
                raise ValueError(f"{path}, line {number}: expected an object, got {line[:40]!r}")
            yield value
