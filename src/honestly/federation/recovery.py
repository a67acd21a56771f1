"""The state of a buffer after a restart, read from its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from honestly.federation.shelf import Shelf, WaitingUpdate
from honestly.result import ClientId
from honestly.rules.memory import Memory
from honestly.rules.rule import Rule

#: the version of an update, and its digest
Counted: TypeAlias = tuple[int, str]


@dataclass
class BufferState:
    """The state in the folder: updates up to number `through` were averaged, the others are waiting."""

    version: int = 0
    through: int = 0
    counted: dict[ClientId, Counted] = field(default_factory=dict[ClientId, Counted])
    memory: Memory | None = None
    rule: str = ""  # the name of the rule that the memory is of
    entries: list[WaitingUpdate] = field(default_factory=list[WaitingUpdate])


def recover(shelf: Shelf, wanted: int | None, log: Callable[[int, str], None]) -> BufferState:
    """Read the state of the buffer in a folder; `wanted` is the version of the caller's model, if it is known.

    Raises:
        ValueError: the folder is at another version than `wanted`, and not just one average ahead of it.
    """
    shelf.sweep()
    entries, newest = _readable(shelf, log)
    try:
        state = shelf.read_state()
        standing = None if state is None else _state_for(state, wanted)
    except (ValueError, OSError, KeyError, TypeError) as error:
        log(
            logging.WARNING,
            f"{error}: the version is taken from the waiting updates, and earlier replies are forgotten",
        )
        standing = None
    if standing is None:
        standing = BufferState(newest if wanted is None else wanted)
    if wanted is not None and wanted != standing.version:
        raise ValueError(
            f"version={wanted}, but the buffer in {shelf.folder} is at {standing.version}: pass the version of the "
            "model that you start with, or use another folder"
        )
    standing.entries = entries
    return standing


def _readable(shelf: Shelf, log: Callable[[int, str], None]) -> tuple[list[WaitingUpdate], int]:
    """The updates that can be read, and the newest version at which one arrived."""
    entries: list[WaitingUpdate] = []
    newest = 0
    for path, entry, arrived in shelf.entries():
        if isinstance(entry, str):
            log(logging.WARNING, f"{path} is left out: {entry}")
        else:
            entries.append(entry)
            newest = max(newest, arrived)
    return entries, newest


def _state_for(state: Mapping[str, Any], wanted: int | None) -> BufferState:
    if wanted is not None and wanted == state["version"] - 1 and "before" in state:
        state = state["before"]
    counted = {client: (int(version), str(sent)) for client, version, sent in state["counted"]}
    memory = None if state["memory"] is None else Memory.from_dict(state["memory"])
    rule = str(state.get("rule", "bayesian"))  # the only one that had such a memory when it was not written down
    return BufferState(int(state["version"]), int(state["through"]), counted, memory, rule)


def state_of(version: int, counted: Mapping[ClientId, Counted], rule: Rule, through: int) -> dict[str, Any]:
    """What a restart needs in addition to the updates, as plain values."""
    memory = getattr(rule, "memory", None)
    remembered = memory.to_dict() if isinstance(memory, Memory) else None
    listed = [[client, last, sent] for client, (last, sent) in counted.items()]
    return {"version": version, "through": through, "counted": listed, "memory": remembered, "rule": rule.name}
