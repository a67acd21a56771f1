"""Rules, mixers and attacks of an experiment: by name, with settings; or a class of the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from honestly.rules.memory import Memory
from honestly.sim.own import imported, is_own

T = TypeVar("T")


class Choice(BaseModel):
    """A rule, mixer or attack by name, with its settings beside the name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The settings without the name."""
        return dict(self.model_extra or {})

    @classmethod
    def named(cls, value: Any) -> Any:
        """`"krum"` stands for `{"name": "krum"}`."""
        return {"name": value} if isinstance(value, str) else value


def made(key: str, choice: Choice, known: Sequence[type[Any]], make: Callable[..., T], base: type[T]) -> T:
    """What a choice stands for, freshly made by `make`, or by a class of the user's own such as ``file.py:MyRule``."""
    if not is_own(choice.name):
        return make(choice.name, **typed(key, choice, known))
    owner = imported(key, choice.name)
    if not isinstance(owner, type) or not issubclass(owner, base) or not dataclasses.is_dataclass(owner):
        raise ValueError(f"{key} '{choice.name}': must be a dataclass that inherits from {base.__name__}")
    allowed = [field.name for field in dataclasses.fields(owner)]
    unknown = next((name for name in choice.settings if name not in allowed), None)
    if unknown is not None:
        raise ValueError(f"{key}.{unknown}: no setting of {choice.name}. Allowed: {', '.join(allowed) or 'none'}")
    try:
        return owner(**typed(key, choice, [owner]))
    except TypeError as error:  # a setting without a default is missing
        raise ValueError(f"{key} '{choice.name}': {error}") from error


def written(choice: Choice, result: Any) -> Choice:
    """The choice with all settings of what was made of it, defaults included."""
    name = choice.name if is_own(choice.name) else result.name
    return Choice.model_validate({"name": name, **_settings(result)})


def typed(key: str, choice: Choice, known: Sequence[type[Any]]) -> dict[str, Any]:
    """The settings of a choice as their owner wants them: 4 becomes 4.0 for a float, and text is no number.

    Names that nobody knows are left for their owner to refuse.
    """
    own = is_own(choice.name)
    owner = next((one for one in known if own or one.name == choice.name), None)
    settings = choice.settings
    for field in () if owner is None else dataclasses.fields(owner):
        if field.name not in settings:
            continue
        kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        value = settings[field.name]
        if field.name == "root":
            raise ValueError(
                f"{key}.root = {value!r}: the server trains it; root=100 says on how many images of its own"
            )
        if field.name == "memory":
            settings["memory"] = _memory(key, value, kind)
            continue
        if kind.startswith(("int", "float")) and not (value is None and "None" in kind):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{key}.{field.name} = {value!r}: give a number")
            if kind.startswith("int") and not float(value).is_integer():
                raise ValueError(f"{key}.{field.name} = {value!r}: give a whole number")
            settings[field.name] = int(value) if kind.startswith("int") else float(value)
        elif kind == "bool" and not isinstance(value, bool):
            raise ValueError(f"{key}.{field.name} = {value!r}: give true or false")
    return settings


def _memory(key: str, value: Any, kind: str) -> Memory | None:
    """A rule's memory between rounds is given by how much of the past it keeps."""
    if value is None or value is False:
        return None
    if kind != "Memory | None" or isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}.memory = {value!r}: give the share of the past that is kept, such as 0.9")
    return Memory(forgetting=float(value))


def _settings(made: Any) -> dict[str, Any]:
    """The settings of a rule or attack that have a plain value (state, such as a memory of rounds, has none)."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if field.name == "memory":
            found["memory"] = value.forgetting if isinstance(value, Memory) else None
        elif field.name == "root":
            continue
        elif isinstance(value, bool | int | float | str) or value is None:
            found[field.name] = value
        elif isinstance(value, tuple | list) and all(isinstance(v, bool | int | float | str) for v in value):
            found[field.name] = list(value)
    return found
