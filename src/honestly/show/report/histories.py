"""Rounds on disk, of a simulation or a real federation, brought into one form: clients by index, names apart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

#: No federation has more; a damaged file may say so.
LAST_ROUND = 10**9


@dataclass(frozen=True)
class Rounds:
    """The rounds of one run.

    Attributes:
        records: in the form of the simulator; clients are indices.
        clients: their names.
        known: True if the records say who attacked.
        damaged: lines of the file that are no rounds.
    """

    records: list[dict[str, Any]]
    clients: list[str]
    known: bool
    damaged: int = 0


def read_rounds(path: Path) -> Rounds:
    """The rounds of a `rounds.jsonl`; a line that is cut short or damaged is counted and left out."""
    found: list[dict[str, Any]] = []
    damaged = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                int(record["round"])
                found.append(record)
            except (ValueError, KeyError, TypeError, RecursionError):
                damaged += 1
    rounds = normal(found)
    return Rounds(rounds.records, rounds.clients, rounds.known, damaged + rounds.damaged)


def normal(raw: Sequence[dict[str, Any]]) -> Rounds:
    """Rounds in one form, whoever wrote them.

    A federation's rounds name their clients (`clients`, one for each entry of `honesty`); a simulation's count them.

    >>> normal([{"round": 1, "clients": ["a", "b"], "honesty": [1.0, 0.1], "accused": ["b"]}]).records[0]["accused"]
    [1]
    """
    named = any(isinstance(r.get("clients"), list) for r in raw)
    names: dict[str, int] = {}
    records: list[dict[str, Any]] = []
    damaged = 0
    for record in raw:
        try:
            records.append(_named(record, names) if named else _counted(record, names))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            damaged += 1
    return Rounds(records, list(names), not named, damaged)


def _named(record: dict[str, Any], names: dict[str, int]) -> dict[str, Any]:
    roster = [str(name) for name in record["clients"]]
    for name in roster:
        names.setdefault(name, len(names))
    here = record.get("participants")
    here = list(range(len(roster))) if here is None else [int(k) for k in here]
    return {
        **record,
        **_numbers(record),
        "attacked": [],
        "participants": [names[roster[k]] for k in here],
        "honesty": _placed(record.get("honesty"), roster, names),
        "weights": _placed(record.get("weights"), roster, names),
        "accused": _indices(record.get("accused"), names),
        "excluded": _indices(record.get("excluded"), names) or [],
        "reasons": {str(name): str(why) for name, why in (record.get("reasons") or {}).items()},
    }


def _counted(record: dict[str, Any], names: dict[str, int]) -> dict[str, Any]:
    lists = {
        key: [int(k) for k in record.get(key) or []] for key in ("participants", "attacked", "accused", "excluded")
    }
    if min((k for found in lists.values() for k in found), default=0) < 0:
        raise ValueError("a client has a negative number")
    width = max([len(record[key]) for key in ("honesty", "weights") if record.get(key)], default=0)
    width = max([width, *(k + 1 for found in lists.values() for k in found)])
    for k in range(len(names), width):
        names[str(k)] = k
    if record.get("participants") is None:
        lists["participants"] = list(range(width))
    accused = None if record.get("accused") is None else lists.pop("accused")
    honesty, weights = (_column(record.get(key)) for key in ("honesty", "weights"))
    return {**record, **_numbers(record), **lists, "accused": accused, "honesty": honesty, "weights": weights}


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    number = int(record["round"])
    if not 0 <= number <= LAST_ROUND:
        raise ValueError(f"round {number} is none")
    return {
        "round": number,
        "accuracy": _finite(record.get("accuracy")),
        "asr": _finite(record.get("asr")),
    }


def _finite(value: Any) -> float | None:
    if value is None or not math.isfinite(float(value)):
        return None
    return float(value)


def _column(values: Any) -> list[float | None] | None:
    return None if values is None else [_finite(v) for v in values]


def _placed(values: Any, roster: Sequence[str], names: dict[str, int]) -> list[float | None] | None:
    """A column in the order of all names so far."""
    if values is None:
        return None
    row: list[float | None] = [None] * len(names)
    for name, value in zip(roster, cast("list[Any]", values), strict=True):
        row[names[name]] = _finite(value)
    return row


def _indices(found: Any, names: dict[str, int]) -> list[int] | None:
    """Clients by name as indices; a client that was not asked but answered gets one, too."""
    return None if found is None else [names.setdefault(str(name), len(names)) for name in found]
