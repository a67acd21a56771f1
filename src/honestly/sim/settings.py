"""Experiments from TOML files, presets and `key=value` words of a command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from honestly.hints import did_you_mean
from honestly.sim.experiment import Experiment, ExperimentError


def presets() -> list[str]:
    """The experiments that come with the package, such as ``paper/fmnist-config2.toml``."""
    top = files("honestly.sim") / "presets"
    found = [f"{folder.name}/{f.name}" for folder in top.iterdir() if folder.is_dir() for f in folder.iterdir()]
    return sorted(name for name in found if name.endswith(".toml"))


def read(path: str) -> dict[str, Any]:
    """The settings in a TOML file: one of yours, else a preset of that name."""
    given = Path(path)
    try:
        if given.is_file():
            text = given.read_text(encoding="utf-8")
        else:
            name = path if path.endswith(".toml") else f"{path}.toml"
            if name not in presets():
                hint = did_you_mean(name, presets())
                raise ExperimentError(f"no such file or preset: {path}; {hint}Presets: {', '.join(presets())}")
            text = (files("honestly.sim") / "presets" / name).read_text(encoding="utf-8")
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is not a valid TOML file: {error}") from error
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror or error}") from error


def value_of(text: str) -> Any:
    """A value as in TOML, or the text itself if it is none.

    >>> value_of("0.4"), value_of("true"), value_of("bayesian"), value_of("[1, 2]")
    (0.4, True, 'bayesian', [1, 2])
    """
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


# Keys whose values are names: `nan` and `inf` are attacks there, and numbers nowhere.
NAMES = ("dataset", "model", "partition", "rule", "attack", "pre", "rule.name", "attack.name", "pre.name")


def override(values: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Settings changed by words such as ``rounds=6`` and ``attack.gamma=4``; the order of the words does not matter.

    >>> override({"rule": {"name": "krum", "f": 2}}, ["rule.trim=0.1", "rule=trimmed_mean"])
    {'rule': {'name': 'trimmed_mean', 'trim': 0.1}}
    """
    pairs: list[tuple[str, Any]] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise ExperimentError(f"'{word}' is not of the form key=value, such as rounds=6 or attack.gamma=4")
        value = value_of(text.strip())
        named = key.strip() in NAMES and isinstance(value, int | float)
        pairs.append((key.strip(), text.strip() if named else value))
    return change(values, pairs)


def change(values: Mapping[str, Any], pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Settings changed by pairs such as ``("rounds", 6)`` and ``("attack.gamma", 4)``, in any order."""
    changed = dict(values)
    for key, value in sorted(pairs, key=lambda pair: pair[0].count(".")):
        path = key.split(".")
        if len(path) == 1:
            changed[key] = value
        elif len(path) == 2 and path[0] in ("rule", "attack", "pre"):
            held = changed.get(path[0], {})
            held = held[0] if isinstance(held, list) and len(held) == 1 else held
            if isinstance(held, str):
                held = {"name": held}
            if not isinstance(held, dict) or "name" not in held:
                default = {} if path[0] == "pre" else {"name": Experiment.model_fields[path[0]].default.name}
                held = {**default, **(held if isinstance(held, dict) else {})}
            if "name" not in held:
                raise ExperimentError(f"{key} = {value!r}: name the mixer first, such as pre=nnm")
            changed[path[0]] = {**held, path[1]: value}
        else:
            raise ExperimentError(
                f"{key} = {value!r}: only rule, attack and pre have settings of their own, such as rule.f=4"
            )
    return changed


def experiment(words: Sequence[str]) -> Experiment:
    """The experiment that these words describe: at most one file or preset, and ``key=value`` changes to it."""
    named = [word for word in words if "=" not in word]
    if len(named) > 1:
        raise ExperimentError(f"more than one file given: {', '.join(named)}; changes are written key=value")
    values = read(named[0]) if named else {}
    return Experiment.of(override(values, [word for word in words if "=" in word]))
