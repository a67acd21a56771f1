"""Completions of the command line, from the parsers and the tables of rules and attacks."""

from __future__ import annotations

import argparse
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from honestly.cli.argparse_private import actions, option, parsers, positionals, subcommands


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
        choices = {name: inner for action in subcommands(parser) for name, inner in parsers(action).items()}
        if word.startswith("-"):
            action = option(parser, word)
            awaited = action if action is not None and action.nargs != 0 else None
        elif awaited is not None:
            awaited = awaited if awaited.nargs in ("*", "+") else None
        elif word in choices:
            parser, path = choices[word], [*path, word]
    if current.startswith("-"):
        visible = [action for action in actions(parser) if action.help != argparse.SUPPRESS]
        return _matching(current, [name for action in visible for name in action.option_strings])
    if awaited is not None:
        return _values(path, awaited, before, current)
    options: list[str] = []
    for action in positionals(parser):
        options += _values(path, action, before, current)
    return options


def _values(path: Sequence[str], action: argparse.Action, before: Sequence[str], current: str) -> list[str]:
    if action.choices is not None:
        return _matching(current, map(str, action.choices))
    find = _FINDERS.get((" ".join(path), action.dest))
    return [] if find is None else find(before, current)


def _matching(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]


def _specs(kind: str, *more: str, several: bool = False) -> Callable[[Sequence[str], str], list[str]]:
    """`nnm:f=4+krum:f=`: names and, after a colon, their settings; with `several`, a comma may also begin a word."""

    def find(before: Sequence[str], current: str) -> list[str]:
        done, spec = re.fullmatch(r"(.*\+)?(.*)", current, re.DOTALL).groups("")  # pyright: ignore[reportOptionalMemberAccess]
        listed, comma, last = spec.rpartition(",") if several else ("", "", spec)
        names = [f"{done}{listed}{comma}{word}" for word in _matching(last, (*_settings(kind), *more))]
        name, colon, settings = spec.partition(":") if not several else _last_spec(spec)
        if not colon or "=" in re.split("[,:]", settings)[-1]:
            return names
        parts = re.fullmatch(r"(.*[,:])?(.*)", settings, re.DOTALL).groups("")  # pyright: ignore[reportOptionalMemberAccess]
        used = {setting.partition("=")[0] for setting in re.split("[,:]", parts[0])}
        known = [key for key in _settings(kind).get(name.rpartition(",")[2], ()) if key not in used]
        return [f"{done}{name}:{parts[0]}{key}=" for key in _matching(parts[1], known)] + (names if comma else [])

    return find


def _last_spec(text: str) -> tuple[str, str, str]:
    """`a,b:x=1,y` as ("a,b", ":", "x=1,y"): the last name with a colon, and what follows it."""
    name, colon, settings = text.rpartition(":")
    while "=" in name.rpartition(",")[2] or "=" in name.rpartition(":")[2]:
        name, colon, rest = name.rpartition(":")
        settings = f"{rest}:{settings}"
    return name, colon, settings


def _settings(kind: str) -> dict[str, Sequence[str]]:
    """The settings of every rule, mixer or attack, or of rules and mixers together ("step")."""
    if kind == "attack":
        from honestly.sim.attacks import ATTACKS

        return {name: list(ATTACKS.settings(attack)) for name, attack in ATTACKS.items()}
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
        from honestly.studies.study import shipped_studies
    except ImportError:  # pydantic is missing, and so is the command
        return []
    return _matching(current, shipped_studies())


def _experiment(before: Sequence[str], current: str) -> list[str]:
    """Presets, `key=`, the values of keys that have a list of them, and `rule.f=` of the rule that was named."""
    try:
        from honestly.sim.experiment import Experiment
        from honestly.sim.models import MODELS
        from honestly.sim.settings import presets
    except ImportError:  # pydantic is missing, and so is the command
        return []
    key, equals, value = current.partition("=")
    kinds = {"rule": "step", "attack": "attack", "pre": "mixer"}
    if equals:
        if key in kinds:
            return [f"{key}={word}" for word in _specs(kinds[key])(before, value)]
        if key == "dataset":
            words = _data_sets(before, "")
        elif key == "model":
            words = list(MODELS)
        else:
            words = _literals(Experiment.model_fields[key].annotation) if key in Experiment.model_fields else []
        return [f"{key}={word}" for word in _matching(value, words)]
    owner, dot, _ = current.partition(".")
    if dot and owner in kinds:
        default: Any = Experiment.model_fields[owner].default
        named = [word.partition("=")[2] for word in before if word.startswith(f"{owner}=")]
        name = re.split("[:]", named[-1].rpartition("+")[2])[0] if named else getattr(default, "name", "")
        return _matching(current, [f"{owner}.{setting}=" for setting in _settings(kinds[owner]).get(name, ())])
    used = {word.partition("=")[0] for word in before}
    keys = [f"{key}=" for key in Experiment.model_fields if key not in used]
    return _matching(current, [*keys, *presets()])


def _literals(annotation: Any) -> list[str]:
    if annotation is bool or bool in typing.get_args(annotation):
        return ["true", "false"]
    return [str(word) for word in typing.get_args(annotation) if isinstance(word, str)]


# completions of options and words for which argparse has no choices; all others are file names
_FINDERS: dict[tuple[str, str], Callable[[Sequence[str], str], list[str]]] = {
    ("aggregate", "rule"): _specs("step"),
    ("aggregate", "pre"): _specs("mixer"),
    ("export scaleout", "rule"): _specs("rule"),
    ("stress", "rules"): _specs("step", "all", several=True),
    ("stress", "attacks"): _specs("attack", "fixed", several=True),
    ("stress", "populations"): _populations,
    ("datasets", "fetch"): _data_sets,
    ("simulate", "words"): _experiment,
    ("bench", "study"): _studies,
}
