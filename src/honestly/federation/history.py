"""Rounds on disk: one line of JSON per round, one row of CSV per client and round; the files are always complete."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from honestly.federation.audit import last_hash, seal
from honestly.federation.names import clean_name
from honestly.federation.record import Round
from honestly.files import write_atomically
from honestly.result import ClientId
from honestly.runs.text import csv_cell, csv_rows, json_value

COLUMNS = ("round", "client", "honesty", "weight", "excluded", "kept", "status")


class History(Sequence[Round]):
    """The rounds so far, as a sequence; with a folder, also as `rounds.jsonl` and `rounds.csv` in it.

    The files are replaced as a whole after every round, so a reader never sees half a round, even after a crash. Files
    of an earlier federation in the folder are kept as `rounds-1.jsonl`, `rounds-1.csv` and so on. Each line contains
    its hash and the hash of the previous line, which `honestly audit` verifies.

    Args:
        folder: where the files are written; None keeps the rounds in memory only.
        run: the name of the run, which the report has as its title. Adapters set the attribute `run` to their
            framework's id of the run if you give no name.

    Example:
        >>> History(None)
        History(0 rounds)
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, run: str = "") -> None:
        if not isinstance(run, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"run is {run!r}; expected a name for the run, as text")
        if folder is not None and not isinstance(folder, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"history is {folder!r}; expected a folder, or None to keep the rounds in memory")
        self.folder = None if folder is None else Path(folder)
        self.run = run
        self._rounds: list[Round] = []
        self._started = False
        self._lines: list[str] = []  # of rounds.jsonl; all but the last one are final
        self._tables: list[str] = []  # rows of rounds.csv, a text for each round; nothing that comes later changes them
        self._hashes: list[str] = []  # the previous hash of each line, see `audit`
        self._roster: dict[ClientId, None] = {}
        self._widths: list[int] = []  # the number of clients known at each line
        self._listeners: list[Callable[[Round], None]] = []
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, record: Round) -> None:
        """Append a round; `write` saves it."""
        self._rounds.append(record)
        for listener in self._listeners:
            try:
                listener(record)
            except Exception:  # a listener must not stop the federation
                logging.getLogger("honestly.federation").exception("a listener of the history failed")

    def listen(self, listener: Callable[[Round], None]) -> None:
        """Call `listener` with every round that is added from now on."""
        self._listeners.append(listener)

    def write(self, memory: Any = None) -> None:
        """Replace the files by all rounds as they are now, and `memory.json` by a rule's memory that can be written."""
        if self.folder is None:
            return
        if not self._started:
            self._hashes = [last_hash(self.folder)]
            _set_aside([self.folder / name for name in ("rounds.jsonl", "rounds.csv", "memory.json")])
            self._started = True
        self._seal()
        write_atomically(self.folder / "rounds.jsonl", "".join(line + "\n" for line in self._lines))
        write_atomically(self.folder / "rounds.csv", self._csv())
        if hasattr(memory, "to_dict"):
            # an id that JSON does not have, such as a UUID, is written as its text, as in the rounds
            text = json.dumps(json_value(memory.to_dict()), indent=1, default=str)
            write_atomically(self.folder / "memory.json", text + "\n")

    def _seal(self) -> None:
        """Make the lines of new rounds, and remake the last line, because its evaluation may have arrived since.

        Earlier lines do not change, so the hash of a line is final once another round follows. A line lists the
        clients that were known at the time.
        """
        final = max(len(self._lines) - 1, 0)
        del self._lines[final:]
        for i, r in enumerate(self._rounds[final:], final):
            if i == len(self._widths):
                self._roster |= dict.fromkeys(r.clients)
                self._widths.append(len(self._roster))
            roster = list(itertools.islice(self._roster, self._widths[i]))
            record = r.as_json(roster) | ({"run": clean_name(self.run)} if self.run else {})
            line, digest = seal(json_value(record), self._hashes[i])
            self._lines.append(line)
            self._hashes[i + 1 :] = [digest]

    def _csv(self) -> str:
        for r in self._rounds[len(self._tables) :]:
            self._tables.append(csv_rows(map(csv_cell, row) for row in _rows(r)))
        return csv_rows([COLUMNS]) + "".join(self._tables)

    def __len__(self) -> int:
        return len(self._rounds)

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> list[Round]: ...
    def __getitem__(self, index: int | slice) -> Round | list[Round]:
        return self._rounds[index]

    def __repr__(self) -> str:
        return f"History({len(self)} rounds)"


def _set_aside(files: Sequence[Path]) -> None:
    """Rename the files of an earlier federation with the first number that is free for all of them."""
    present = [path for path in files if path.exists()]
    if not present:
        return
    number = next(n for n in itertools.count(1) if not any(_number_path(path, n).exists() for path in files))
    for path in present:
        path.rename(_number_path(path, number))


def _number_path(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}")


def _rows(r: Round) -> Iterator[tuple[Any, ...]]:
    for client in r.clients:
        honesty = None if r.honesty is None else r.honesty.get(client, 0.0)
        weight = None if r.weights is None else r.weights.get(client, 0.0)
        yield (r.number, r.names(client), honesty, weight, r.excluded.get(client, ""), int(r.kept), r.status)
