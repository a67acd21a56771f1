"""What rules and mixers remember from round to round, as JSON and arrays for the state file."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from honestly.sim.rounds import State

HOME = "honestly.rules."  # classes are loaded from nowhere else


def remembered(state: State) -> dict[str, Any]:
    """The rule and the mixers as arrays by name: their settings as JSON in "memory", arrays beside it."""
    arrays: dict[str, Any] = {}
    parts = [_encode(part, arrays) for part in (state.rule, *state.mixers)]
    return {**arrays, "memory": np.array(json.dumps(parts))}


def with_memory(state: State, arrays: Mapping[str, Any]) -> State:
    """The state with the rule and the mixers as they were saved."""
    parts = [_decode(part, arrays) for part in json.loads(str(arrays["memory"]))]
    kinds = [type(part) for part in (state.rule, *state.mixers)]
    if [type(part) for part in parts] != kinds:
        raise ValueError("it was saved with another rule")
    return State(state.round, state.model, parts[0], tuple(parts[1:]))


def _encode(value: Any, arrays: dict[str, Any]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        name = f"memory/{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return {"tuple": [_encode(v, arrays) for v in value]}
    if isinstance(value, list):
        return [_encode(v, arrays) for v in value]
    if isinstance(value, Mapping):
        return {"map": [[_encode(k, arrays), _encode(v, arrays)] for k, v in value.items()]}
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith(HOME):
        fields = [f for f in dataclasses.fields(value) if f.init]
        held = {f.name: _encode(getattr(value, f.name), arrays) for f in fields}
        return {"class": [type(value).__module__, type(value).__qualname__], "fields": held}
    raise TypeError(f"cannot save a {type(value).__name__} that a rule remembers")


def _decode(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decode(v, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "tuple" in value:
        return tuple(_decode(v, arrays) for v in value["tuple"])
    if "map" in value:
        return {_decode(k, arrays): _decode(v, arrays) for k, v in value["map"]}
    module, name = value["class"]
    if not module.startswith(HOME):
        raise ValueError(f"it wants to load {module}.{name}, which is no rule")
    made = getattr(importlib.import_module(module), name)
    return made(**{k: _decode(v, arrays) for k, v in value["fields"].items()})
