"""Reads the rounds of a simulation or a real federation: typed, finite, with clients as indices.

A file may be untrusted, of an older version, or incomplete. A missing field is None or empty; an invalid one is left
out and named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

from honestly.runs.clean import fields, items, number, parse_json, whole_number
from honestly.runs.record import NAMED, RoundRecord

#: Limits that no federation reaches, against damaged files.
LAST_ROUND = 10**9
MOST_CLIENTS = 10**6


@dataclass(frozen=True)
class Rounds:
    """The rounds of one run.

    Attributes:
        records: one for each round; clients are indices of `clients`.
        clients: their names.
        known: True if the records say who attacked.
        damaged: the number of lines that are not rounds.
    """

    records: Sequence[RoundRecord]
    clients: Sequence[str]
    known: bool
    damaged: int = 0

    @property
    def run(self) -> str:
        """What the server calls its run, in the last round that says so; "" if none does."""
        return next((record.run for record in reversed(self.records) if record.run), "")


def read_rounds(path: Path) -> Rounds:
    """The rounds of a `rounds.jsonl`; incomplete and damaged lines are counted and left out."""
    values: list[Any] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.strip():
                try:
                    values.append(parse_json(line))
                except ValueError:
                    values.append(None)
    return read(values)


def read(raw: Iterable[Any]) -> Rounds:
    """The rounds in a common form; a round with an invalid field is counted as damaged and left out.

    A federation's rounds name their clients (`clients`, one for each entry of `honesty`); a simulation's count them.

    >>> read([{"round": 1, "clients": ["a", "b"], "honesty": [1.0, 0.1], "accused": ["b"]}]).records[0].accused
    [1]
    """
    pairs = [read_record(value) for value in raw]
    named = any(record.clients is not None for record, _ in pairs)
    sound = [record for record, wrong in pairs if not wrong and (record.clients is not None) == named]
    records, names = join(sound)
    everybody = [r if r.participants is not None else replace(r, participants=range(_width(r))) for r in records]
    return Rounds(everybody, names, not named, len(pairs) - len(sound))


def read_record(value: Any) -> tuple[RoundRecord, list[str]]:
    """One record, and the names of the fields that were wrong. It never raises.

    Where the record names its clients, indices are those of its own `clients`.

    >>> record, wrong = read_record({"round": 1, "accuracy": float("nan"), "asr": "high", "attacked": [2, -1]})
    >>> record.accuracy, record.asr, record.attacked, wrong
    (None, None, [2], ['asr', 'attacked'])
    """
    raw = fields(value)
    values: dict[str, Any] = {"round": 0}
    wrong: list[str] = [] if "round" in raw else ["round"]
    for name, reader in FIELDS:
        if (one := raw.get(name)) is not None:
            values[name], right = reader(one)
            if not right:
                wrong.append(name)
    record = RoundRecord(**values)
    return (record, wrong) if record.clients is None else _by_index(record, raw, wrong)


def _by_index(record: RoundRecord, raw: Mapping[str, Any], wrong: list[str]) -> tuple[RoundRecord, list[str]]:
    """A record that names its clients, with indices in place of names."""
    names = list(record.clients or ())
    count = len(names)  # clients that answered without being asked come last
    index = {name: k for k, name in enumerate(names)}
    lists: dict[str, Any] = {}
    for field in NAMED:
        if isinstance(raw.get(field), list):
            order = [str(name) for name in raw[field]]
            lists[field] = [index.setdefault(name, len(index)) for name in order]
            wrong = [name for name in wrong if name != field]
    names += [name for name, k in index.items() if k >= count]
    here = range(count) if record.participants is None else record.participants
    if any(k >= count for k in here):
        here, wrong = [k for k in here if k < count], [*wrong, "participants"]
    if any(row is not None and len(row) != count for row in (record.honesty, record.weights)):
        wrong = [*wrong, "clients"]
    return replace(record, clients=names, participants=here, attacked=(), **lists), wrong


def join(records: Sequence[RoundRecord]) -> tuple[list[RoundRecord], list[str]]:
    """The records with indices into one list of names, and that list: clients may join and leave between rounds."""
    names: dict[str, int] = {}
    for record in records:
        clients = record.clients if record.clients is not None else map(str, range(len(names), _width(record)))
        for name in clients:
            names.setdefault(name, len(names))
    return [record if record.clients is None else _place_clients(record, names) for record in records], list(names)


def _place_clients(record: RoundRecord, names: Mapping[str, int]) -> RoundRecord:
    own = [names[name] for name in record.clients or ()]
    if own == list(range(len(names))):
        return record

    def indices(clients: Sequence[int] | None) -> list[int] | None:
        return None if clients is None else [own[k] for k in clients]

    def column(values: Sequence[float | None] | None) -> list[float | None] | None:
        if values is None:
            return None
        row: list[float | None] = [None] * len(names)
        for k, value in zip(own, values, strict=False):
            row[k] = value
        return row

    return replace(
        record,
        clients=list(names),
        participants=indices(record.participants),
        excluded=indices(record.excluded) or (),
        accused=indices(record.accused),
        honesty=column(record.honesty),
        weights=column(record.weights),
    )


def _width(record: RoundRecord) -> int:
    """The number of clients in a record without names."""
    rows = (record.honesty or (), record.weights or ())
    lists = (record.participants or (), record.attacked, record.accused or (), record.excluded)
    return max([*map(len, rows), *(max(clients) + 1 for clients in lists if clients)])


# -- one reader per type: the value, and whether it was valid ----------------------------------------------------------


def _real(value: Any) -> tuple[float | None, bool]:
    """A number. JSON has no NaN, but Python writes it: NaN means that the number was not measured."""
    if type(value) is float and math.isfinite(
        value
    ):  # the usual case, which must be fast: studies have millions of numbers
        return value, True
    result = number(value, None)
    return result, result is not None or (isinstance(value, float) and not math.isfinite(value))


def _count(value: Any) -> tuple[int | None, bool]:
    result = whole_number(value, most=LAST_ROUND)
    return result, result is not None


def _always_count(value: Any) -> tuple[int, bool]:
    result, right = _count(value)
    return result or 0, right


def _clients(value: Any) -> tuple[list[int] | None, bool]:
    if not isinstance(value, list):
        return None, False
    if set(map(type, items(value))) == {int} and 0 <= min(value) <= max(value) <= MOST_CLIENTS:
        return value, True
    numbers = [whole_number(item, most=MOST_CLIENTS) for item in items(value)]
    valid = [k for k in numbers if k is not None]
    return valid, len(valid) == len(numbers)


def _always_clients(value: Any) -> tuple[list[int], bool]:
    clients, right = _clients(value)
    return clients or [], right


def _column(value: Any) -> tuple[list[float | None] | None, bool]:
    if not isinstance(value, list):
        return None, False
    if set(map(type, items(value))) <= {float, NoneType} and math.isfinite(sum(filter(None, value))):
        return value, True
    pairs = [(None, True) if item is None else _real(item) for item in items(value)]
    return [number for number, _ in pairs], all(right for _, right in pairs)


def _names(value: Any) -> tuple[list[str] | None, bool]:
    return ([str(name) for name in items(value)], True) if isinstance(value, list) else (None, False)


def _text(value: Any) -> tuple[str, bool]:
    return (value, True) if isinstance(value, str) else ("", False)


def _flag(value: Any) -> tuple[bool, bool]:
    return value is True, isinstance(value, bool)


def _texts(value: Any) -> tuple[dict[str, str], bool]:
    return {str(name): str(why) for name, why in fields(value).items()}, isinstance(value, dict)


def _object(value: Any) -> tuple[dict[str, Any], bool]:
    return fields(value), isinstance(value, dict)


#: By the annotation of a field of `RoundRecord`.
READERS: Mapping[str, Callable[[Any], tuple[Any, bool]]] = {
    "int": _always_count,
    "int | None": _count,
    "float | None": _real,
    "bool": _flag,
    "str": _text,
    "Sequence[int]": _always_clients,
    "Sequence[int] | None": _clients,
    "Sequence[float | None] | None": _column,
    "Sequence[str] | None": _names,
    "Mapping[str, str]": _texts,
    "Mapping[str, Any]": _object,
}
FIELDS = [(field.name, READERS[str(field.type)]) for field in dataclasses.fields(RoundRecord)]
