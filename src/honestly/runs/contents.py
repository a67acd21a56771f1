"""The content of a folder: a study, a run (of a simulation or a federation's server), or folders of runs."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from honestly.runs.database import FILE
from honestly.runs.folder import EXPERIMENT, ROUNDS


class Kind(Enum):
    """What a folder is."""

    STUDY = "study"
    RUN = "run"
    RUNS = "runs"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Contents:
    """What a folder is, and the folders of its runs; a study's are in its store."""

    kind: Kind
    runs: tuple[Path, ...] = ()

    def runs_with_rounds(self) -> list[Path]:
        """The files of the runs that have rounds."""
        return [run / ROUNDS for run in self.runs if (run / ROUNDS).is_file()]


def contents(folder: Path, *, most: int | None = None) -> Contents:
    """The content of a folder, which need not exist; at most `most` folders of runs, sorted by name."""
    if (folder / FILE).is_file():
        return Contents(Kind.STUDY)
    if _is_run(folder):
        return Contents(Kind.RUN, (folder,))
    if not folder.is_dir():
        return Contents(Kind.NOTHING)
    with os.scandir(folder) as entries:
        looked_at = itertools.islice(entries, None if most is None else 20 * most)
        inside = sorted(entry.name for entry in looked_at if entry.is_dir())
    folders = itertools.islice((folder / name for name in inside if _is_run(folder / name)), most)
    runs = tuple(folders)
    return Contents(Kind.RUNS if runs else Kind.NOTHING, runs)


def _is_run(folder: Path) -> bool:
    return (folder / ROUNDS).is_file() or (folder / EXPERIMENT).is_file()
