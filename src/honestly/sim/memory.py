"""What rules and mixers remember from round to round, as plain arrays for the state file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from honestly.rules.memory import Memory
from honestly.sim.rounds import State


def remembered(state: State) -> dict[str, Any]:
    """The fields of the rule and the mixers: plain values and states as JSON, arrays and mappings of arrays as arrays."""
    arrays: dict[str, Any] = {}
    for number, part in enumerate((state.rule, *state.mixers)):
        plain: dict[str, Any] = {}
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            key = f"memory/{number}/{field.name}"
            if isinstance(value, np.ndarray):
                arrays[key] = value
            elif isinstance(value, Memory):
                arrays[f"{key}/state"] = np.array(json.dumps(value.to_dict()))
            elif isinstance(value, dict) and value:
                arrays[f"{key}/keys"] = np.array(list(value))
                arrays[f"{key}/values"] = np.array([np.asarray(v) for v in value.values()])
            elif isinstance(value, bool | int | float | str) or value is None:
                plain[field.name] = value
        arrays[f"memory/{number}"] = np.array(json.dumps(plain))
    return arrays


def with_memory(state: State, arrays: dict[str, Any]) -> State:
    """The state with what its rule and mixers remembered."""
    parts: list[Any] = []
    for number, part in enumerate((state.rule, *state.mixers)):
        changes: dict[str, Any] = json.loads(str(arrays.get(f"memory/{number}", "{}")))
        for field in dataclasses.fields(part):
            key = f"memory/{number}/{field.name}"
            if key in arrays:
                changes[field.name] = arrays[key]
            elif f"{key}/state" in arrays:
                changes[field.name] = Memory.from_dict(json.loads(str(arrays[f"{key}/state"])))
            elif f"{key}/keys" in arrays:
                values = arrays[f"{key}/values"]
                changes[field.name] = dict(zip(arrays[f"{key}/keys"].tolist(), values, strict=True))
        known = {f.name for f in dataclasses.fields(part) if f.init}
        parts.append(dataclasses.replace(part, **{k: v for k, v in changes.items() if k in known}))
    return State(state.round, state.model, parts[0], tuple(parts[1:]))
