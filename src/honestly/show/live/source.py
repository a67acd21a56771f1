"""The source of the page's data: a study's database or folders of runs, depending on the content of the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from honestly.runs.contents import Kind, contents
from honestly.runs.folder import ROUNDS
from honestly.show.live.folders import MOST_FOLDERS, FolderSource
from honestly.show.live.model import Detail, Snapshot, SourceError
from honestly.show.live.study import DATABASE, StudySource


class LiveSource(Protocol):
    """One way to read a folder. Every method may raise `SourceError`; the source is then opened again."""

    def look(self) -> Snapshot:
        """The current state."""
        ...

    def detail(self, run: str) -> Detail | None:
        """One run with its rounds; None if there is no such run."""
        ...

    def close(self) -> None:
        """Close files."""
        ...


def open_source(folder: Path) -> LiveSource:
    """The source that fits the folder; a `SourceError` says what is missing."""
    try:
        if folder.is_file():
            raise SourceError(f"{folder} is a file: give the folder of a study or a run")
        kind = contents(folder, most=MOST_FOLDERS).kind
        if kind is not Kind.NOTHING:
            return StudySource(folder) if kind is Kind.STUDY else FolderSource(folder)
    except OSError as error:
        raise SourceError(f"{folder} cannot be read: {error.strerror or error}") from error
    what = "is empty so far" if folder.is_dir() else "is not there yet"
    raise SourceError(f"{folder} {what}: waiting for a study ({DATABASE}) or a run ({ROUNDS})")
