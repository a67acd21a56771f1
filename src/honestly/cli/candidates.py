"""Which words may come next on the command line: found from the parsers and from the tables of rules and attacks."""

from __future__ import annotations

import argparse
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from honestly.cli.parser import subcommands


def candidates(top: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Completions of the last of the words (without the program's name); none where a file name is expected.

    >>> from honestly.cli import parser
    >>> candidates(parser(), ["ru"]), candidates(parser(), ["aggregate", "--rule", "geo"])
    (['rules'], ['geometric_median'])
    """
    *before, current = words or [""]
    path: list[str] = []
    parser, awaited = top, None
    for word in before:
        choices = {name: inner for action in subcommands(parser) for name, inner in action.choices.items()}
        if word.startswith("-"):
            action = parser._option_string_actions.get(word)  # pyright: ignore[reportPrivateUsage]
            awaited = action if action is not None and action.nargs != 0 else None
        elif awaited is not None:
            awaited = awaited if awaited.nargs in ("*", "+") else None
        elif word in choices:
            parser, path = choices[word], [*path, word]
    if current.startswith("-"):
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]  # pyright: ignore[reportPrivateUsage]
        return _matching(current, [option for action in shown for option in action.option_strings])
    if awaited is not None:
        return _values(path, awaited, before, current)
    found: list[str] = []
    for action in parser._get_positional_actions():  # pyright: ignore[reportPrivateUsage]
        found += _values(path, action, before, current)
    return found


def _values(path: Sequence[str], action: argparse.Action, before: Sequence[str], current: str) -> list[str]:
    if action.choices is not None:
        return _matching(current, map(str, action.choices))
    find = _FINDERS.get((" ".join(path), action.dest))
    return [] if find is None else find(before, current)


def _matching(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]


def _specs(kind: str, *more: str) -> Callable[[Sequence[str], str], list[str]]:
    """`nnm+krum:f=`: names after a comma or plus, and after a colon the settings of the name."""

    def find(before: Sequence[str], current: str) -> list[str]:
        done, spec = re.fullmatch(r"(.*[,+])?(.*)", current, re.DOTALL).groups("")  # pyright: ignore[reportOptionalMemberAccess]
        table = _settings(kind)
        name, colon, setting = spec.rpartition(":") if ":" in spec else (spec, "", "")
        if colon:
            known = table.get(name.partition(":")[0], ())
            return [f"{done}{name}:{key}=" for key in _matching(setting, known)]
        return [done + word for word in _matching(spec, (*table, *more))]

    return find


def _settings(kind: str) -> dict[str, Sequence[str]]:
    """The settings of every rule, mixer or attack, or of rules and mixers together."""
    if kind == "attack":
        from honestly.sim.attacks import ATTACKS, settings_of

        return {name: list(settings_of(attack)) for name, attack in ATTACKS.items()}
    from honestly.rules import list_rules

    return {info.name: info.settings for info in list_rules() if kind in (info.kind, "step")}


def _populations(before: Sequence[str], current: str) -> list[str]:
    from honestly.studies.populations import KINDS

    return _matching(current, KINDS)


def _data_sets(before: Sequence[str], current: str) -> list[str]:
    from honestly.sim.data import DATASETS

    return _matching(current, DATASETS)


def _studies(before: Sequence[str], current: str) -> list[str]:
    try:
        from honestly.studies.study import shipped
    except ImportError:  # pydantic is missing, and so is the command
        return []
    return _matching(current, shipped())


def _experiment(before: Sequence[str], current: str) -> list[str]:
    """Presets, `key=`, the values of keys that have a list of them, and `rule.f=` of the rule that was named."""
    try:
        from honestly.sim.experiment import MODEL_FOR, Experiment
        from honestly.sim.settings import presets
    except ImportError:  # pydantic is missing, and so is the command
        return []
    key, equals, value = current.partition("=")
    kinds = {"rule": "rule", "attack": "attack", "pre": "mixer"}
    if equals:
        if key in kinds:
            words = list(_settings(kinds[key]))
        elif key == "dataset":
            words = _data_sets(before, "")
        elif key == "model":
            words = [*dict.fromkeys(MODEL_FOR.values()), "cnn_norm", "mlp", "resnet18_half"]
        else:
            words = _literals(Experiment.model_fields[key].annotation) if key in Experiment.model_fields else []
        return [f"{key}={word}" for word in _matching(value, words)]
    owner, dot, _ = current.partition(".")
    if dot and owner in kinds:
        default: Any = Experiment.model_fields[owner].default
        named = [word.partition("=")[2] for word in before if word.startswith(f"{owner}=")]
        name = named[-1] if named else getattr(default, "name", "")
        return _matching(current, [f"{owner}.{setting}=" for setting in _settings(kinds[owner]).get(name, ())])
    given = {word.partition("=")[0] for word in before}
    keys = [f"{key}=" for key in Experiment.model_fields if key not in given]
    return _matching(current, [*keys, *presets()])


def _literals(annotation: Any) -> list[str]:
    if annotation is bool or bool in typing.get_args(annotation):
        return ["true", "false"]
    return [str(word) for word in typing.get_args(annotation) if isinstance(word, str)]


# What follows an option or stands as a word of a command, where argparse knows no choices; elsewhere files are meant.
_FINDERS: dict[tuple[str, str], Callable[[Sequence[str], str], list[str]]] = {
    ("aggregate", "rule"): _specs("rule"),
    ("aggregate", "pre"): _specs("mixer"),
    ("export scaleout", "rule"): _specs("rule"),
    ("stress", "rules"): _specs("step", "all"),
    ("stress", "attacks"): _specs("attack", "fixed"),
    ("stress", "populations"): _populations,
    ("datasets", "fetch"): _data_sets,
    ("simulate", "words"): _experiment,
    ("bench", "study"): _studies,
}
