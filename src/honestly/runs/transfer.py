"""Import results of other machines and earlier sessions: folders of studies, archives and JSON lines."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from honestly.runs.database import FILE, StoreError
from honestly.runs.export import TRIES, read_lines, starts
from honestly.runs.incoming import check_round, check_run
from honestly.runs.rows import DONE, Run, canonical
from honestly.runs.states import States
from honestly.runs.store import Store

# archives of earlier versions have the files of a run's folder, too: the rounds are those of the store
MEMBER = re.compile(
    rf"{re.escape(FILE)}|runs/[0-9a-f]{{64}}/(experiment\.json|rounds\.jsonl|seconds\.jsonl|state-[0-9]{{1,9}}\.bin)"
)

# Bytes that any archive may unpack to, and how many times its own size a larger one may: results become 5 to 20 times
# as large, a file of zeros a thousand times.
ANY_SIZE, MOST_TIMES = 16 << 20, 200


@dataclass
class ImportResult:
    """The result of an import."""

    done: int = 0
    begun: int = 0
    rounds: int = 0
    there: int = 0
    differ: int = 0

    def __str__(self) -> str:
        parts = [f"{self.done} finished run(s) imported", f"{self.begun} unfinished to resume"]
        parts += [f"{self.rounds} round(s) added"] if self.rounds else []
        parts += [f"{self.there} there already"]
        parts += [f"{self.differ} of those with other numbers (kept as they were here)"] if self.differ else []
        return ", ".join(parts)


def take_in(store: Store, path: Path, *, only: Collection[str] | None = None) -> ImportResult:
    """Add runs from another folder, archive or file that this store does not have; nothing in the store is lost.

    Args:
        store: the destination.
        path: a study's folder, its study.sqlite, or a file of `honestly export`: .tar.gz, .jsonl, .jsonl.gz.
        only: the ids of the runs to import; None for all, and for the study's file if there is none yet.
    """
    if not path.exists():
        raise ValueError(f"--import {path}: there is no such file or folder")
    if path.is_dir():
        return _merge(store, path, only)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if path.name.endswith((".tar.gz", ".tgz")):
            _unpack(path, folder)
            return _merge(store, folder, only)
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            try:
                return _take_lines(store, path, only)
            except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
                raise ValueError(f"{path} is damaged: {error}") from error
        if path.suffix == ".sqlite":
            for part in ("", "-wal"):
                if (file := path.with_name(path.name + part)).is_file():
                    shutil.copyfile(file, folder / (FILE + part))
            return _merge(store, folder, only)
    raise ValueError(f"--import {path}: give a study's folder, or a file that ends in .sqlite, .tar.gz or .jsonl[.gz]")


def _unpack(path: Path, folder: Path) -> None:
    """Extract the files of a study from an archive and nothing else: no links, no paths that lead elsewhere."""
    left = max(ANY_SIZE, MOST_TIMES * path.stat().st_size)
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                left -= member.size
                if left < 0:
                    raise ValueError(f"{path} unpacks to more than {MOST_TIMES} times its size: it is not imported")
                file = tar.extractfile(member) if member.isreg() and MEMBER.fullmatch(member.name) else None
                if file is None:
                    raise ValueError(f"{path} has {member.name!r}, which is not part of a study: it is not imported")
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with file, target.open("wb") as out:
                    shutil.copyfileobj(file, out)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or not a .tar.gz file: {error}") from error


def _merge(store: Store, folder: Path, only: Collection[str] | None) -> ImportResult:
    if (folder / FILE).exists() and store.folder.resolve() == folder.resolve():
        raise ValueError(f"--import {folder}: that is the study itself")
    result = ImportResult()
    with Store.read(folder) as other:
        mine, theirs = store.meta(), other.meta()
        if only is None and "study" not in mine and "study" in theirs:
            meta = {key: value for key, value in theirs.items() if key != "schema"}
            store.set_meta(**meta)
        wanted = starts(other)
        here = {run.id for run in store.runs() if run.status == DONE}
        for run in other.runs():
            if only is not None and run.id not in only:
                continue
            files = other.run_folder(run.id)
            if run.id in wanted and run.status == "done" and not States(files).path(run.of).is_file():
                continue  # other runs start from its model, which is not here: it must be run again
            # before the rounds: no state of a run in progress is then ahead of them
            states = {} if run.id in here else _read_states(files)
            with contextlib.suppress(KeyError):  # a damaged index does not find it
                run = other.run(run.id)
            rounds = other.timed_rounds(run.id)
            _take_run(store, run, [record for record, _ in rounds], [laps for _, laps in rounds], states, result)
    return result


def _read_states(folder: Path) -> dict[str, bytes]:
    """The states of a run, by the names of their files.

    A run in progress removes older ones at any moment: then look again.
    """
    states = States(folder)
    for _ in range(TRIES):
        with contextlib.suppress(FileNotFoundError):
            return {states.path(n).name: states.path(n).read_bytes() for n in states.rounds()}
    return {}


def _take_run(
    store: Store, run: Run, records: Sequence[Any], seconds: Sequence[Any], states: Mapping[str, bytes],
    result: ImportResult,
) -> None:  # fmt: skip
    check_run(run)
    for record, laps in zip(records, seconds, strict=True):
        check_round(run.id, record, laps)
    text = canonical(run.experiment)
    if hashlib.sha256(text.encode()).hexdigest() != run.id:
        raise StoreError(f"run {run.id[:12]!r} does not match the experiment of its id: it is not imported")
    try:
        present: Run | None = store.run(run.id)
    except KeyError:
        present = None
    if present is not None and present.status == "done":
        result.there += 1
        result.differ += run.status == "done" and present.summary != run.summary
        return
    if present is not None:
        run = replace(run, ordinal=present.ordinal, cell=present.cell)
    folder = store.run_folder(run.id)
    if run.status == "done":
        _copy(states, folder)
        store.put(run, records, seconds)
        result.done += 1
    elif states and (present is None or present.rounds < run.rounds):
        _copy(states, folder)
        store.put(_to_go_on(run), records, seconds)
        result.begun += 1
    elif present is None:
        store.put(replace(_to_go_on(run), rounds=0), [], [])


def _to_go_on(run: Run) -> Run:
    return replace(run, status="pending", worker=None, attempts=0, finished=None, error=None)


def _copy(states: Mapping[str, bytes], folder: Path) -> None:
    """Write the states of a run."""
    if states:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in states.items():
            (folder / name).write_bytes(content)


def _take_lines(store: Store, path: Path, only: Collection[str] | None) -> ImportResult:
    """JSON lines of runs, of rounds, or of both."""
    result = ImportResult()
    names = {f.name for f in fields(Run)}
    rounds: dict[str, list[tuple[Any, Any]]] = {}
    for number, value in enumerate(read_lines(path), 1):
        if names <= value.keys():
            run = Run(**{name: value[name] for name in names})
            if run.status == "done" and (only is None or run.id in only):
                _take_run(store, run, [], [], {}, result)
        elif {"run", "record", "seconds"} <= value.keys():
            check_round(value["run"], value["record"], value["seconds"])
            rounds.setdefault(value["run"], []).append((value["record"], value["seconds"]))
        else:
            raise ValueError(f"{path}, line {number}: neither a run nor a round of honestly export")
    for id, pairs in rounds.items():
        result.rounds += store.fill(id, [record for record, _ in pairs], [laps for _, laps in pairs])
    return result
