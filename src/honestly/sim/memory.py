"""What rules, mixers and attackers remember from round to round, as JSON and arrays for the state file."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from array_api_compat import to_device

from honestly.engine import Pipeline
from honestly.federation.server import ServerStep
from honestly.sim.state import State

ATTACK = "attack/"  # prefix of the names of what attackers remember
HOME = "honestly.rules."  # classes are loaded from here, and from the file of a rule of the user's own that is in use


def memory_arrays(state: State) -> dict[str, Any]:
    """The rule and the mixers as arrays by name: their settings as JSON in "memory", arrays beside it."""
    arrays: dict[str, Any] = {}
    own = _own(state)
    parts = [_encode(part, arrays, own) for part in (state.rule, *state.pipeline.mixers)]
    if state.server is not None:
        arrays["server"] = np.array(state.server.steps)
        arrays |= {f"server/{name}": moment["theta"].cpu().numpy() for name, moment in state.server.moments.items()}
    attack = {f"{ATTACK}{name}": to_device(array, "cpu") for name, array in state.attack.items()}
    return {**arrays, "memory": np.array(json.dumps(parts)), **{k: np.asarray(v) for k, v in attack.items()}}


def with_memory(state: State, arrays: Mapping[str, Any]) -> State:
    """The state with the rule and the mixers as they were saved."""
    own = _own(state)
    parts = [_decode(part, arrays, own) for part in json.loads(str(arrays["memory"]))]
    kinds = [type(part) for part in (state.rule, *state.pipeline.mixers)]
    if [type(part) for part in parts] != kinds:
        raise ValueError("it was saved with another rule")
    pipeline = Pipeline(tuple(parts[1:]), parts[0])
    attack = {name.removeprefix(ATTACK): array for name, array in arrays.items() if name.startswith(ATTACK)}
    return dataclasses.replace(state, pipeline=pipeline, server=_server(state, arrays), attack=attack)


def _server(state: State, arrays: Mapping[str, Any]) -> ServerStep | None:
    """The server's optimiser with the moments that were saved."""
    if state.server is None:
        return None
    server = copy.deepcopy(state.server)
    server.steps = int(arrays["server"])
    for name, values in arrays.items():
        if name.startswith("server/"):
            moment = torch.from_numpy(values).to(state.model.theta.device)
            server.moments.setdefault(name.partition("/")[2], {})["theta"] = moment
    return server


def _own(state: State) -> set[str]:
    return {type(part).__module__ for part in (state.rule, *state.pipeline.mixers)}


def _encode(value: Any, arrays: dict[str, Any], own: set[str]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        name = f"memory/{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return {"tuple": [_encode(v, arrays, own) for v in value]}
    if isinstance(value, list):
        return [_encode(v, arrays, own) for v in value]
    if isinstance(value, Mapping):
        return {"map": [[_encode(k, arrays, own), _encode(v, arrays, own)] for k, v in value.items()]}
    module = type(value).__module__
    if dataclasses.is_dataclass(value) and (module.startswith(HOME) or module in own):
        fields = [f for f in dataclasses.fields(value) if f.init]
        values = {f.name: _encode(getattr(value, f.name), arrays, own) for f in fields}
        return {"class": [module, type(value).__qualname__], "fields": values}
    raise ValueError(
        f"the rule remembers a {type(value).__name__}, which cannot be saved with the run: keep numbers, text, NumPy "
        "arrays, and tuples, lists, dicts or dataclasses of these"
    )


def _decode(value: Any, arrays: Mapping[str, Any], own: set[str]) -> Any:
    if isinstance(value, list):
        return [_decode(v, arrays, own) for v in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "tuple" in value:
        return tuple(_decode(v, arrays, own) for v in value["tuple"])
    if "map" in value:
        return {_decode(k, arrays, own): _decode(v, arrays, own) for k, v in value["map"]}
    module, name = value["class"]
    if not module.startswith(HOME) and module not in own:
        raise ValueError(f"it wants to load {module}.{name}, which is not a rule")
    kind = getattr(importlib.import_module(module), name)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):  # a function could do anything
        raise ValueError(f"it wants to call {module}.{name}, which is not a rule")
    return kind(**{k: _decode(v, arrays, own) for k, v in value["fields"].items()})
