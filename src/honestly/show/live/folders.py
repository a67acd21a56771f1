"""Runs in folders: those of `honestly simulate`, and the histories that a federation's server writes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from honestly.runs.clean import fields, number, parse_json, text, whole_number
from honestly.runs.contents import Kind, contents
from honestly.runs.folder import EXPERIMENT, ROUNDS, SECONDS, read_description
from honestly.runs.record import duration
from honestly.show.labels import attack_labels, rule_labels
from honestly.show.live.model import Detail, RunRow, Snapshot, SourceError, Status, summary_fields
from honestly.show.live.rounds import detail
from honestly.sim.summary import summary

MOST_FOLDERS = 1000
LARGEST_FILE = 512 * 2**20
QUIET = 60.0  # seconds without a new round until a run counts as stopped; more for slow rounds
AXES = ("dataset", "rule", "attack", "malicious", "alpha", "clients", "seed")


@dataclass
class WatchedRun:
    """One run's files. Only changed parts are read again."""

    folder: Path
    signature: tuple[Any, ...] = ()
    lines: list[str] = field(default_factory=list[str])
    records: list[Any] = field(default_factory=list[Any])
    experiment: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: float | None = None
    updated: float | None = None
    damage: str = ""
    detail: Detail | None = None

    def refresh(self) -> None:
        """Read what is new."""
        files = {name: self.folder / name for name in (ROUNDS, EXPERIMENT, SECONDS)}
        stats = {name: _stat(path) for name, path in files.items()}
        signature = tuple((s.st_mtime_ns, s.st_size, s.st_ino) if s else None for s in stats.values())
        if signature == self.signature:
            return
        self.damage, self.detail = "", None
        rounds = stats[ROUNDS] or stats[EXPERIMENT]
        self.updated = rounds.st_mtime if rounds else None
        try:
            described = _read(files[EXPERIMENT])  # a federation has none
            self.experiment = read_description(described)[1] if described else {}
        except ValueError:
            self.damage = f"{EXPERIMENT} is damaged;"
        self._read_rounds(_read(files[ROUNDS]))
        self.seconds = _seconds_a_round(_read(files[SECONDS]))
        self.signature = signature

    def _read_rounds(self, content: str) -> None:
        lines = content.split("\n")
        records: list[Any] = []
        for i, line in enumerate(lines):
            if i < len(self.lines) and i < len(self.records) and self.lines[i] == line:
                records.append(self.records[i])
                continue
            if not line.strip():
                break
            try:
                records.append(parse_json(line))
            except ValueError:
                if i + 1 < len(lines):  # a last line without a newline is still being written
                    self.damage = f"{self.damage} {ROUNDS} is damaged at line {i + 1}: earlier rounds are shown".strip()
                break
        self.lines, self.records = lines, records

    @property
    def name(self) -> str:
        """What a federation's server calls its run, else the folder's name."""
        names = (fields(r).get("run") for r in reversed(self.records))
        return text(next((name for name in names if isinstance(name, str) and name), self.folder.resolve().name), 100)

    def run(self, now: float, rule: str, attack: str) -> RunRow:
        """The run as a row of the overview, with names that tell its rule and attack from those of other runs."""
        e = {**self.experiment}
        e |= {axis: label for axis, label in (("rule", rule), ("attack", attack)) if axis in e}
        cell = {axis: text(e[axis], 100) for axis in AXES if axis in e}
        numbers = summary([fields(r) for r in self.records])
        of = whole_number(e.get("rounds"))
        return RunRow(
            id=self.folder.name,
            cell=cell or {"run": self.name},
            status=self._status(now, of),
            rounds=len(self.records),
            of=of,
            updated=None if self.updated is None else round(self.updated, 1),
            seconds=self.seconds,
            error=self.damage,
            **summary_fields(numbers),
        )

    def _status(self, now: float, of: int | None) -> Status:
        if of is not None and len(self.records) >= of:
            return "done"
        patience = max(QUIET, 10 * (self.seconds or 0.0))
        return "running" if self.updated is not None and now - self.updated < patience else "stopped"


class FolderSource:
    """A run's folder, or a folder of such folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Path, WatchedRun] = {}

    def look(self) -> Snapshot:
        """The current state of every run."""
        try:
            there = contents(self.folder, most=MOST_FOLDERS)
            if not there.runs:
                raise SourceError(f"{self.folder} was removed or emptied: the page shows what was read last")
            self.known = {path: self.known.get(path) or WatchedRun(path) for path in there.runs}
            for one in self.known.values():
                one.refresh()
        except OSError as error:
            raise SourceError(f"{self.folder} cannot be read: {error.strerror or error}") from error
        now = time.time()
        single = there.kind is Kind.RUN
        name = next(iter(self.known.values())).name if single else text(self.folder.resolve().name, 200)
        experiments = [one.experiment for one in self.known.values()]
        labels = zip(self.known.values(), rule_labels(experiments), attack_labels(experiments), strict=True)
        runs = tuple(one.run(now, rule, attack) for one, rule, attack in labels)
        return Snapshot("federation" if single else "folder", name, runs)

    def detail(self, run: str) -> Detail | None:
        """One run with its rounds."""
        for path, one in self.known.items():
            if path.name == run:
                one.detail = one.detail or detail(one.records, one.experiment)
                return one.detail
        return None

    def close(self) -> None:
        """No file is kept open."""


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SourceError(f"{path} is larger than {LARGEST_FILE // 2**20} MB: too large to watch")
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _seconds_a_round(content: str) -> float | None:
    """The mean time of the last ten rounds: the laps of each, without its number and its images."""
    durations: list[float] = []
    for line in content.splitlines()[-10:]:
        try:
            laps = fields(parse_json(line))
        except ValueError:
            continue
        durations.append(duration(laps))
    return number(fmean(durations), 3) if durations else None
