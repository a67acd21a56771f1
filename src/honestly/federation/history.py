"""Rounds on disk: one line of JSON each, and one row of CSV for each client and round, complete at any moment."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, overload

from honestly.federation.record import Round
from honestly.files import write_atomically
from honestly.printable import printable

COLUMNS = ("round", "client", "honesty", "weight", "excluded", "kept", "status")


class History(Sequence[Round]):
    """The rounds so far, as a sequence; with a folder, also as `rounds.jsonl` and `rounds.csv` in it.

    The files are replaced as a whole after every round, so that a reader, or a crash, never sees half a round. Those
    of an earlier federation in the folder are kept as `rounds-1.jsonl`, `rounds-1.csv` and so on.

    Example:
        >>> History(None)
        History(0 rounds)
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._rounds: list[Round] = []
        self._begun = False
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, record: Round) -> None:
        """Append a round; `write` puts it on disk."""
        self._rounds.append(record)

    def write(self) -> None:
        """Replace the files by all rounds as they are now."""
        if self.folder is None:
            return
        if not self._begun:
            _set_aside([self.folder / "rounds.jsonl", self.folder / "rounds.csv"])
            self._begun = True
        roster = list(dict.fromkeys(client for r in self._rounds for client in r.clients))
        lines = [json.dumps(_plain(r.as_json(roster)), allow_nan=False) for r in self._rounds]
        write_atomically(self.folder / "rounds.jsonl", "".join(line + "\n" for line in lines))
        write_atomically(self.folder / "rounds.csv", self._csv())

    def _csv(self) -> str:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for r in self._rounds:
            for client in r.clients:
                honesty = "" if r.honesty is None else r.honesty.get(client, 0.0)
                weight = "" if r.weights is None else r.weights.get(client, 0.0)
                reason = _cell(r.excluded.get(client, ""))
                rows.writerow((r.number, _cell(str(client)), honesty, weight, reason, int(r.kept), _cell(r.status)))
        return text.getvalue()

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
    """Give files of an earlier federation a name with the first number that none of them has yet."""
    held = [path for path in files if path.exists()]
    if not held:
        return
    number = next(n for n in itertools.count(1) if not any(_numbered(path, n).exists() for path in files))
    for path in held:
        path.rename(_numbered(path, number))


def _numbered(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}")


def _cell(text: str) -> str:
    """Text that a spreadsheet does not take for a formula, nor a terminal for orders: strangers wrote part of it."""
    text = printable(text)
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity: None stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value
