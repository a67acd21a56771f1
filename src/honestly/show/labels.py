"""Names of rules, mixers and attacks of several runs, by which they can be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from honestly.catalog import Spec
from honestly.runs.clean import fields, items, scalar, text


def as_axes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as values that tables can group by."""
    return {text(key, 100): None if value is None else scalar(value) for key, value in settings.items()}


def choice_labels(choices: Sequence[Sequence[Any]]) -> list[str]:
    """Rules behind their mixers, or attacks, by name; where the same names have other settings, with those settings.

    >>> two = [[{"name": "krum", "f": 1}], [{"name": "krum", "f": 2}]]
    >>> choice_labels([*two, [{"name": "nnm", "f": 1}, {"name": "mean"}]])
    ['krum:f=1', 'krum:f=2', 'nnm+mean']
    """
    names = [tuple(map(choice_name, choice)) for choice in choices]
    settings = [[_settings(one) for one in choice] for choice in choices]
    first = dict(zip(reversed(names), reversed(settings), strict=True))
    differ = {
        (name, i, key)
        for name, mine in zip(names, settings, strict=True)
        for i, (one, other) in enumerate(zip(mine, first[name], strict=True))
        for key in one.keys() | other.keys()
        if one.get(key) != other.get(key)
    }
    return [
        "+".join(
            str(Spec(word, {key: value for key, value in mine[i].items() if (name, i, key) in differ}))
            for i, word in enumerate(name)
        )
        for name, mine in zip(names, settings, strict=True)
    ]


def _settings(choice: Any) -> dict[str, Any]:
    return {key: value for key, value in as_axes(fields(choice)).items() if key != "name"}


def choice_name(choice: Any) -> str:
    """Its name without its settings."""
    return str(choice.get("name", "")) if isinstance(choice, Mapping) else str(choice or "")


def rule_labels(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rule of each experiment, behind its mixers."""
    return choice_labels([[*items(one.get("pre")), one.get("rule")] for one in experiments])


def attack_labels(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The attack of each experiment."""
    return choice_labels([[one.get("attack")] for one in experiments])
