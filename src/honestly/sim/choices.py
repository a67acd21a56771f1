"""Rules, mixers and attacks of an experiment: by name, with settings; or a class of the user's own."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from honestly.catalog import Catalog, Spec
from honestly.own import is_own
from honestly.rules.memory import Memory

T = TypeVar("T")


class Choice(BaseModel):
    """A rule, mixer or attack by name, with its settings beside the name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The settings without the name."""
        return dict(self.model_extra or {})

    def make(self, key: str, catalog: Catalog[T]) -> T:
        """Build the rule, mixer or attack; `key` is its key in the experiment, for messages."""
        return catalog.build(Spec(self.name, self.settings), key=key)

    def complete(self, thing: Any) -> Choice:
        """The choice with every setting of the built object, defaults included."""
        name = self.name if is_own(self.name) else thing.name
        return Choice.model_validate({"name": name, **_plain(thing)})


def parse_choice(value: Any) -> Any:
    """`"krum:f=2"` stands for `{"name": "krum", "f": 2}`; a table or a Choice stays as it is."""
    if not isinstance(value, str | dict | Choice):
        raise ValueError("write a name with its settings, such as krum:f=2 or { name = 'krum', f = 2 }")
    return values_of(Spec.parse(value)) if isinstance(value, str) else value


def separate_mixers(values: dict[str, Any]) -> dict[str, Any]:
    """An experiment's values with the mixers of `rule = "nnm:f=4+krum:f=4"` behind those of `pre`."""
    rule = values.get("rule")
    if not isinstance(rule, str):
        return values
    *mixers, last = Spec.parse_all(rule)
    if mixers:
        values = {**values, "pre": [*sequence(values.get("pre", ())), *map(values_of, mixers)]}
    return {**values, "rule": values_of(last)}


def sequence(pre: Any) -> Any:
    """Mixers as a list, however they are written: `"nnm:f=4+arc:f=4"`, one table, or a list of them."""
    if isinstance(pre, str):
        return [values_of(spec) for spec in Spec.parse_all(pre)]
    return [parse_choice(one) for one in pre] if isinstance(pre, list | tuple) else [parse_choice(pre)]


def values_of(spec: Spec) -> dict[str, Any]:
    """A spec as a settings file would hold it."""
    return {"name": spec.name, **spec.settings}


def _plain(thing: Any) -> dict[str, Any]:
    """The settings of a rule or attack that have a plain value (state, such as a memory of rounds, has none)."""
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if field.metadata.get("later") and value == field.default:
            continue
        if field.name == "memory":
            settings["memory"] = value.forgetting if isinstance(value, Memory) else None
        elif field.name == "root":
            continue
        elif isinstance(value, bool | int | float | str) or value is None:
            settings[field.name] = value
        elif isinstance(value, tuple | list) and all(isinstance(v, bool | int | float | str) for v in value):
            settings[field.name] = list(value)
    return settings
