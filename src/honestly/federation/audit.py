"""Tamper-evident histories: each line of `rounds.jsonl` contains its hash and the hash of the previous line.

    line  = {..., "previous": hash of the line before, "hash": SHA-256 of all of this line before its hash}

The chain continues after a restart: the first line of `rounds.jsonl` follows the last line of the file before it.
Someone who can write the file can also recompute all hashes, so the chain alone only detects partial changes. Store the
head, the hash of the last line, where the server cannot write: then no line before it can be changed unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from honestly.files import check_regular

#: the previous hash of the very first line
BEGINNING = "0" * 64
_SEAL = re.compile(r', "hash": "([0-9a-f]{64})"\}')
SEAL_LENGTH = len(', "hash": ""}') + 64
_PART = "follows a line of an earlier file, as after a restart: audit the folder that holds both"
NAME = re.compile(r"rounds(?:-(\d{1,9}))?\.jsonl")


def seal(record: dict[str, Any], previous: str) -> tuple[str, str]:
    """The line of a round, without the newline, and its hash. `record` has plain values.

    Example:
        >>> line, head = seal({"round": 1}, BEGINNING)
        >>> unseal(line) == (head, BEGINNING)
        True
    """
    text = json.dumps({**record, "previous": previous}, allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{text[:-1]}, "hash": "{digest}"}}', digest


def unseal(line: str) -> tuple[str, str] | None:
    """The hash of a line and of the previous one; None if it has none. ValueError if the line was changed."""
    match = _SEAL.fullmatch(line[-SEAL_LENGTH:])
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not a complete JSON object") from None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    if match is None:
        if "hash" in record or "previous" in record:
            raise ValueError("was changed: its hash is not where it was written")
        return None
    text = line[:-SEAL_LENGTH] + "}"
    if hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest() != match[1]:
        raise ValueError("was changed: its hash does not match")
    return match[1], str(record.get("previous"))


def last_hash(folder: Path) -> str:
    """The hash that the next file of a history continues from; `BEGINNING` if the latest one has no chain.

    The latest one is not `rounds.jsonl` if a server ended after it had set that aside and before its first round was
    written, because it was killed or the disk was full.
    """
    try:
        files = _files(folder)
        lines = _lines(files[-1]) if files else []
        sealed = unseal(lines[-1]) if lines else None
    except (OSError, ValueError):
        return BEGINNING
    return BEGINNING if sealed is None else sealed[0]


@dataclass
class Audit:
    """The result of verifying a history.

    Attributes:
        files: their names, oldest first.
        rounds: the number of lines.
        unsealed: lines without a hash, which an older version or a simulation wrote.
        head: the hash of the last line.
        broken: the first line that was changed, as a sentence; "" if there is none.
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
        """True if the chain shows no change in any line."""
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
                sealed = unseal(line)
            except ValueError as error:
                result.broken = f"{path.name}, line {i + 1}: {error}"
                return result
            if sealed is None:
                if result.heads:
                    result.broken = f"{path.name}, line {i + 1}: has no hash, though earlier lines do"
                    return result
                result.unsealed += 1
                continue
            if not _follows(result, sealed[1], first=i == 0):
                part = i == 0 and folder.is_file() and sealed[1] != BEGINNING
                why = _PART if part else _explain_break(result, sealed[1], lines, i)
                result.broken = f"{path.name}, line {i + 1}: {why}"
                return result
            result.head = sealed[0]
            result.heads.append(sealed[0])
        if lines and not path.read_bytes().endswith(b"\n"):
            result.broken = f"{path.name}, line {len(lines)}: has no newline: the file was truncated"
            return result
    return result


def _follows(result: Audit, previous: str, *, first: bool) -> bool:
    if previous == result.head:
        return True
    # a file without hashes (of an older version), or an unreadable one, may come before a new chain
    return first and previous == BEGINNING and not result.heads


def _explain_break(result: Audit, previous: str, lines: Sequence[str], i: int) -> str:
    if previous in result.heads:
        after = result.heads.index(previous) + 1
        return f"follows line {after} of the chain, not the line before it: a line was inserted, repeated or moved"
    later = [_hash(line) for line in lines[i + 1 :]]
    if previous in later:
        return f"follows line {i + 2 + later.index(previous)}, which comes later: the lines were reordered"
    if previous == BEGINNING:
        return "begins a chain of its own: the line was replaced, or belongs to another history"
    before = "a file before this one" if i == 0 else "a line before it"
    return f"follows a line that is not here: {before} was removed or replaced"


def _hash(line: str) -> str | None:
    try:
        sealed = unseal(line)
    except ValueError:
        return None
    return None if sealed is None else sealed[0]


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    matches = [(m, path) for path in folder.iterdir() if (m := NAME.fullmatch(path.name))]
    # rounds-1, rounds-2, ..., and the current one last
    return [path for _, path in sorted(matches, key=lambda pair: int(pair[0][1] or 10**10))]


def _lines(path: Path) -> list[str]:
    check_regular(path)
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines
