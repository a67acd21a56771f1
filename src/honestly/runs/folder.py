"""The folder of a run: rounds are appended line by line, all other files are written atomically.

experiment.json   what is run, and its id
rounds.jsonl      one JSON object per round; the same bytes in every run of the experiment on one machine
seconds.jsonl     how long each round took
state-N.bin       the model after round N, with a checksum; the two latest are kept
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from honestly.files import append, check_regular
from honestly.runs.clean import fields, parse_json
from honestly.runs.reader import read_record
from honestly.runs.record import RoundRecord
from honestly.runs.states import States
from honestly.runs.text import compact
from honestly.runs.writing import remedies, write_file

EXPERIMENT, ROUNDS, SECONDS = "experiment.json", "rounds.jsonl", "seconds.jsonl"


class RunFolder:
    """One run's folder as a `RoundSink`: a round is one line, added to the end of a file.

    Args:
        folder: an existing folder.
        id, experiment: what is run, for `experiment.json`.
    """

    def __init__(self, folder: Path, id: str, experiment: Mapping[str, Any]) -> None:
        self.folder = folder
        self.description = json.dumps({"id": id, "experiment": experiment}, indent=2, sort_keys=True) + "\n"
        self.states: States | None = States(folder)
        self.rounds, self.seconds = JsonLines(folder / ROUNDS), JsonLines(folder / SECONDS)

    def records(self) -> list[RoundRecord]:
        """The complete rounds, from the first one on."""
        return [read_record(json.loads(line))[0] for line in self.rounds.read()]

    def keep(self, rounds: int) -> None:
        """Drop all later rounds: they will be computed again, with the same bits.

        This writes `experiment.json`. A run whose model or data cannot be made therefore leaves no trace.
        """
        write_file(self.folder / EXPERIMENT, self.description)
        self.rounds.keep(rounds)
        self.seconds.keep(rounds)

    def add(self, record: RoundRecord, laps: Mapping[str, float]) -> None:
        """Write a round."""
        self.rounds.add(compact(record.as_json()))
        self.seconds.add(compact({"round": record.round, **laps}))

    def clear(self) -> None:
        """Remove all files of the run."""
        for name in (ROUNDS, SECONDS):
            (self.folder / name).unlink(missing_ok=True)
        if self.states is not None:
            self.states.clear()


class JsonLines:
    """A growing file of JSON lines, one per round. A crash can leave half a line at its end, which is not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self.size = 0

    def read(self) -> list[str]:
        """The lines up to the first one that is incomplete, damaged or out of order."""
        check_regular(self.path)
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        lines: list[str] = []
        for line in text.split("\n")[:-1]:  # text after the last newline is incomplete
            try:
                if fields(parse_json(line)).get("round") != len(lines) + 1:
                    break
            except ValueError:
                break
            lines.append(line)
        return lines

    def keep(self, count: int) -> None:
        """Continue after that many lines; the file is rewritten only if it has other content."""
        self.lines = self.read()[:count]
        content = self._content()
        if self._size() != len(content):
            write_file(self.path, content)
        self.size = len(content)

    def add(self, line: str) -> None:
        """Append a line. If someone else has changed the file, it is rewritten as a whole."""
        self.lines.append(line)
        if self._size() == self.size:
            with remedies(self.path):
                append(self.path, f"{line}\n".encode())
        else:
            write_file(self.path, self._content())
        self.size += len(line.encode()) + 1

    def _content(self) -> bytes:
        return "".join(line + "\n" for line in self.lines).encode()

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


def read_description(text: str) -> tuple[str, dict[str, Any]]:
    """The id and the settings in an `experiment.json`. ValueError if it is damaged."""
    description = fields(parse_json(text))
    if not isinstance(description.get("id"), str) or not isinstance(description.get("experiment"), dict):
        raise ValueError(f"{EXPERIMENT} is damaged")
    return description["id"], fields(description["experiment"])
