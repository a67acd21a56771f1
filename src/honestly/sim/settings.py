"""Experiments from TOML files, presets and `key=value` words of a command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from honestly.hints import did_you_mean
from honestly.sim.choices import parse_choice, separate_mixers, sequence
from honestly.sim.experiment import Experiment, ExperimentError


def presets() -> list[str]:
    """The experiments that come with the package, such as ``paper/fmnist-config2.toml``."""
    top = files("honestly.sim") / "presets"
    names = [f"{folder.name}/{f.name}" for folder in top.iterdir() if folder.is_dir() for f in folder.iterdir()]
    return sorted(name for name in names if name.endswith(".toml"))


def read(path: str) -> dict[str, Any]:
    """The settings in a TOML file: one of yours, else a preset of that name."""
    file = Path(path)
    try:
        if file.is_file():
            text = file.read_text(encoding="utf-8")
        else:
            name = path if path.endswith(".toml") else f"{path}.toml"
            if name not in presets():
                hint = did_you_mean(name, presets())
                raise ExperimentError(
                    f"no such file or preset: {path}{'; ' + hint if hint else '. '}Presets: {', '.join(presets())}"
                )
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
    """Settings changed by words such as ``rounds=6`` and ``attack=sign_flip:gamma=4``, in any order.

    ``attack.gamma=4`` changes one setting of the attack that a file names.

    >>> override({"rule": {"name": "krum", "f": 2}}, ["rule.trim=0.1", "rule=trimmed_mean"])
    {'rule': {'name': 'trimmed_mean', 'trim': 0.1}}
    """
    pairs: list[tuple[str, Any]] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise ExperimentError(f"'{word}' is not of the form key=value, such as rounds=6 or attack.gamma=4")
        if any("\ud800" <= letter <= "\udfff" for letter in word):  # so Python reads bytes of another encoding
            raise ExperimentError(f"'{word}' is not UTF-8, which the record of a run must be: rename the file")
        value = value_of(text.strip())
        named = key.strip() in NAMES and isinstance(value, int | float)
        pairs.append((key.strip(), text.strip() if named else value))
    return change(values, pairs)


def change(values: Mapping[str, Any], pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Settings changed by pairs such as ``("rounds", 6)`` and ``("attack.gamma", 4)``, in any order."""
    changed = dict(values)
    for key, value in sorted(pairs, key=lambda pair: pair[0].count(".")):
        owner, dot, setting = key.partition(".")
        if not dot:
            changed[key] = value
        elif owner in ("rule", "attack", "pre") and "." not in setting:
            changed = separate_mixers(changed)
            changed[owner] = {**_choice_table(changed, owner, f"{key} = {value!r}"), setting: value}
        else:
            raise ExperimentError(
                f"{key} = {value!r}: only rule, attack and pre have settings of their own, such as rule=krum:f=4"
            )
    return changed


def _choice_table(values: Mapping[str, Any], owner: str, wanted: str) -> dict[str, Any]:
    """The rule, attack or single mixer whose setting is wanted, as a table."""
    choice = values.get(owner, {})
    if owner == "pre":
        mixers = sequence(choice)
        choice = mixers[0] if isinstance(mixers, list) and len(mixers) == 1 else {}
    choice = parse_choice(choice)
    if isinstance(choice, dict) and "name" in choice:
        return choice
    if owner == "pre":
        raise ExperimentError(f"{wanted}: name the mixer first, such as pre=nnm")
    return {"name": Experiment.model_fields[owner].default.name, **(choice if isinstance(choice, dict) else {})}


def experiment(words: Sequence[str]) -> Experiment:
    """The experiment that these words describe: at most one file or preset, and ``key=value`` changes to it."""
    named = [word for word in words if "=" not in word]
    if len(named) > 1:
        raise ExperimentError(f"more than one file given: {', '.join(named)}; changes are written key=value")
    values = read(named[0]) if named else {}
    return Experiment.of(override(values, [word for word in words if "=" in word]))


def doubts(experiment: Experiment) -> list[str]:
    """Warnings about settings that contradict each other: an attack without attackers, or attackers without one."""
    if experiment.attack.name != "none" and experiment.malicious_clients == 0:
        setting = (
            f"malicious={experiment.malicious:g} of {experiment.clients} clients"
            if experiment.malicious
            else "malicious=0"
        )
        return [f"attack={experiment.attack.name}, but nobody attacks ({setting}): add malicious=0.4"]
    if experiment.attack.name == "none" and experiment.malicious_clients > 0:
        setting = f"malicious={experiment.malicious:g}"
        return [f"{setting}, but attack=none, so these clients behave like the others: add attack=sign_flip"]
    return []
