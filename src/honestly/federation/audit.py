"""A history that shows when it was changed: each line of `rounds.jsonl` carries its hash and that of the line before.

    line  = {..., "previous": hash of the line before, "hash": SHA-256 of all of this line before its hash}

The chain goes on over restarts: the first line of `rounds.jsonl` follows the last one of the file that was set aside.
Whoever can write the file can also compute hashes, so a chain by itself shows only what was done carelessly, or to a
part of it. Keep the head, the last line's hash, where the server cannot write: then nothing before it can be changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: what the first line of all follows
BEGINNING = "0" * 64
_SEAL = re.compile(r', "hash": "([0-9a-f]{64})"\}')
SEAL_LENGTH = len(', "hash": ""}') + 64
NAME = re.compile(r"rounds(?:-(\d{1,9}))?\.jsonl")


def seal(record: dict[str, Any], previous: str) -> tuple[str, str]:
    """The line of a round, without its end, and its hash. `record` holds plain values.

    Example:
        >>> line, head = seal({"round": 1}, BEGINNING)
        >>> unseal(line) == (head, BEGINNING)
        True
    """
    text = json.dumps({**record, "previous": previous}, allow_nan=False)
    found = hashlib.sha256(text.encode()).hexdigest()
    return f'{text[:-1]}, "hash": "{found}"}}', found


def unseal(line: str) -> tuple[str, str] | None:
    """The hash of a line and of the one before it; None if it carries none. ValueError if the line was changed."""
    found = _SEAL.fullmatch(line[-SEAL_LENGTH:])
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is no whole JSON object") from None
    if not isinstance(record, dict):
        raise ValueError("is no JSON object")
    if found is None:
        if "hash" in record or "previous" in record:
            raise ValueError("was changed: its hash is not where it was written")
        return None
    text = line[:-SEAL_LENGTH] + "}"
    if hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest() != found[1]:
        raise ValueError("was changed: it does not have the hash that it carries")
    return found[1], str(record.get("previous"))


def last_hash(path: Path) -> str:
    """What a new file follows that takes the place of this one; the beginning if this one has no chain."""
    try:
        lines = _lines(path)
        found = unseal(lines[-1]) if lines else None
    except (OSError, ValueError):
        return BEGINNING
    return BEGINNING if found is None else found[0]


@dataclass
class Audit:
    """What the files of a history show.

    Attributes:
        files: their names, oldest first.
        rounds: the number of lines.
        unsealed: lines without a hash, which an older version wrote.
        head: the hash of the last line.
        broken: the first line that is not as it was written, as a sentence; "" if there is none.
        heads: the hashes of all lines up to there.
    """

    files: list[str] = field(default_factory=list[str])
    rounds: int = 0
    unsealed: int = 0
    head: str = BEGINNING
    broken: str = ""
    heads: list[str] = field(default_factory=list[str])

    @property
    def sound(self) -> bool:
        """True if every line is there as it was written, as far as a chain can show."""
        return not self.broken and not self.unsealed and self.rounds > 0


def audit(folder: Path) -> Audit:
    """Verify the chain of a history's folder (or of one file) and stop at the first line that breaks it."""
    files = _files(folder)
    result = Audit([path.name for path in files])
    for path in files:
        try:
            lines = _lines(path)
        except OSError as error:
            result.broken = f"{path.name} cannot be read: {error.strerror or error}"
            return result
        for i, line in enumerate(lines):
            result.rounds += 1
            try:
                found = unseal(line)
            except ValueError as error:
                result.broken = f"{path.name}, line {i + 1}: {error}"
                return result
            if found is None:
                if result.heads:
                    result.broken = f"{path.name}, line {i + 1}: carries no hash, though lines before it do"
                    return result
                result.unsealed += 1
                continue
            if not _follows(result, found[1], first=i == 0):
                result.broken = f"{path.name}, line {i + 1}: {_why(result, found[1], lines, i)}"
                return result
            result.head = found[0]
            result.heads.append(found[0])
        if lines and not path.read_bytes().endswith(b"\n"):
            result.broken = f"{path.name}, line {len(lines)}: has no end: the file was cut short"
            return result
    return result


def _follows(result: Audit, previous: str, *, first: bool) -> bool:
    if previous == result.head:
        return True
    # an older version's file without hashes, or one that could not be read, may come before a new chain
    return first and previous == BEGINNING and not result.heads


def _why(result: Audit, previous: str, lines: Sequence[str], i: int) -> str:
    if previous in result.heads:
        after = result.heads.index(previous) + 1
        return f"follows line {after} of the chain, not the line before it: a line was inserted, repeated or moved"
    later = [_hash(line) for line in lines[i + 1 :]]
    if previous in later:
        return f"follows line {i + 2 + later.index(previous)}, which comes later: the lines were put in another order"
    if previous == BEGINNING:
        return "begins a chain of its own: the line was replaced, or belongs to another history"
    before = "a file before this one" if i == 0 else "a line before it"
    return f"follows a line that is not here: {before} was removed or replaced"


def _hash(line: str) -> str | None:
    try:
        found = unseal(line)
    except ValueError:
        return None
    return None if found is None else found[0]


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    found = [(m, path) for path in folder.iterdir() if (m := NAME.fullmatch(path.name))]
    # rounds-1, rounds-2, ..., and the current one last
    return [path for _, path in sorted(found, key=lambda pair: int(pair[0][1] or 10**10))]


def _lines(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines
