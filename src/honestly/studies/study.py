"""A study: a TOML file of axes, expanded to experiments.

name = "mine"

[base]                       # settings of every run, as in `honestly simulate`
dataset = "digits"
malicious = 8

[axes]                       # the first axis changes slowest
attack = ["sign_flip", "backdoor"]
rule = [                     # a value may have a label, and set several things
    { label = "Ours", rule = "bayesian" },
    { label = "Krum", rule = { name = "multi_krum", f = 8 } },
]
seed = [0, 1]

[[overrides]]                # settings of the cells that match
where = { attack = "backdoor" }
set = { rounds = 40 }

[[exclude]]                  # cells that are left out
rule = "Ours"
seed = [1]
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from honestly.catalog import split_words
from honestly.hints import did_you_mean
from honestly.runs.store import PlannedRun
from honestly.sim.experiment import WARM_UP_LEAVES, Experiment, ExperimentError
from honestly.sim.messages import explain
from honestly.sim.settings import change, value_of

LIMIT = 100_000  # the most runs of a study: more is probably a mistake in an axis
Cell = dict[str, Any]


class StudyError(ValueError):
    """A study that cannot be run; every line names a key, its value and what is allowed."""


class Override(BaseModel):
    """Settings of the cells that match."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: dict[str, Any]
    set: dict[str, Any]


class Study(BaseModel):
    """The contents of a study's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=100)
    about: str = ""
    base: dict[str, Any] = {}
    axes: dict[str, list[Any]]
    overrides: list[Override] = []
    exclude: list[dict[str, Any]] = []

    @field_validator("axes")
    @classmethod
    def _axes(cls, axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Check that every axis has values with distinct labels."""
        for name, values in axes.items():
            if not values:
                raise ValueError(f"axes.{name} = []: give at least one value")
            labels = [label_of(name, value) for value in values]
            twice = next((label for label in labels if labels.count(label) > 1), None)
            if twice is not None:
                raise ValueError(f"axes.{name}: {twice!r} appears twice")
            known = name in Experiment.model_fields or name.partition(".")[0] in ("rule", "attack", "pre")
            if not known and not all(isinstance(value, dict) for value in values):
                hint = did_you_mean(name, Experiment.model_fields)
                raise ValueError(
                    f"axes.{name}: not a setting of an experiment, {hint}Write what its values stand for: "
                    f"{name} = [{{ label = {labels[0]!r}, malicious = 4 }}]"
                )
        return axes

    @classmethod
    def parse(cls, text: str, source: str = "the study") -> Study:
        """A study from TOML text."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise StudyError(f"{source} is not a valid TOML file: {error}") from error
        try:
            study = cls.model_validate(values)
        except ValidationError as error:
            raise StudyError(f"{source}: {explain(error, values, cls)}") from error
        study.check_matches()
        return study

    def check_matches(self) -> None:
        """Refuse misspelt axes and values in conditions, which would match nothing."""
        where = [("overrides.where", o.where) for o in self.overrides] + [("exclude", cell) for cell in self.exclude]
        for key, conditions in where:
            if not conditions:
                raise StudyError(f"{key} = {{}}: name at least one axis, or every cell would match")
            check_conditions(conditions, self, key)

    def labels(self, axis: str) -> list[Any]:
        """The labels of an axis."""
        return [label_of(axis, value) for value in self.axes[axis]]

    def cells(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Every cell that is not excluded, with the settings of its experiment; the first axis changes slowest."""
        for values in itertools.product(*self.axes.values()):
            cell = {name: label_of(name, value) for name, value in zip(self.axes, values, strict=True)}
            if any(matches(cell, conditions) for conditions in self.exclude):
                continue
            settings = dict(self.base)
            for name, value in zip(self.axes, values, strict=True):
                changes = {k: v for k, v in value.items() if k != "label"} if _has_label(value) else {name: value}
                settings = change(settings, changes.items())
            for override in self.overrides:
                if matches(cell, override.where):
                    settings = change(settings, override.set.items())
            yield cell, settings

    def entries(self) -> list[PlannedRun]:
        """All runs in order, a warm-up before the first that needs it; a `StudyError` names a cell that fails."""
        size = 1
        for values in self.axes.values():
            size *= len(values)
        if size > LIMIT:
            raise StudyError(f"the axes give {size:,} cells: at most {LIMIT:,} are allowed")
        planned: dict[str, PlannedRun] = {}
        warm_ups: dict[str, tuple[Experiment, list[Cell]]] = {}
        for cell, settings in self.cells():
            try:
                experiment = Experiment.of(settings)
                before = experiment.before
            except ExperimentError as error:
                raise StudyError(f"the cell {describe(cell)} cannot be run: {error}") from error
            if experiment.id in planned:
                twin = planned[experiment.id].cell
                raise StudyError(
                    f"the cells {describe(twin)} and {describe(cell)} are the same experiment: exclude one"
                )
            needs = None if before is None else before.id
            planned[experiment.id] = PlannedRun(experiment.id, cell, experiment.canonical, experiment.rounds, needs)
            if before is not None:
                warm_ups.setdefault(before.id, (before, []))[1].append(cell)
        if not planned:
            raise StudyError("no cells are left: all of them are excluded")
        entries: dict[str, PlannedRun] = {}
        for id, entry in planned.items():
            if entry.needs is not None:
                entries.setdefault(entry.needs, planned.get(entry.needs) or _in_front(*warm_ups[entry.needs]))
            entries.setdefault(id, entry)
        return list(entries.values())


def _in_front(experiment: Experiment, cells: Sequence[Cell]) -> PlannedRun:
    """The entry of a warm-up; its cell holds what the runs that start from it have in common."""
    first = cells[0]
    common = {
        name: value
        for name, value in first.items()
        if name.partition(".")[0] not in WARM_UP_LEAVES and all(cell[name] == value for cell in cells)
    }
    return PlannedRun(experiment.id, {**common, "warm_up": experiment.rounds}, experiment.canonical, experiment.rounds)


def _has_label(value: Any) -> bool:
    return isinstance(value, dict) and "label" in value


def label_of(axis: str, value: Any) -> Any:
    """The label of a value: its own label, its name, or the value itself."""
    if isinstance(value, dict):
        label = value.get("label", value.get("name"))
        if isinstance(label, bool) or not isinstance(label, str | int | float):
            raise ValueError(f'axes.{axis}: {value!r} needs a label, such as label = "A"')
        return label
    if isinstance(value, list):
        return " ".join(str(label_of(axis, v)) for v in value) or "none"
    return value


def matches(cell: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Whether a cell has these values; a list stands for any of its values."""
    return all(cell.get(k) in (v if isinstance(v, list) else [v]) for k, v in conditions.items())


def check_conditions(conditions: Mapping[str, Any], study: Study, key: str) -> None:
    """Refuse axes and values that the study does not have."""
    for axis, value in conditions.items():
        if axis not in study.axes:
            hint = did_you_mean(axis, study.axes)
            raise StudyError(f"{key}: {axis} = {value!r}: no such axis, {hint}Axes: {', '.join(study.axes)}")
        for one in value if isinstance(value, list) else [value]:
            labels = study.labels(axis)
            if one not in labels:
                hint = did_you_mean(one, labels)
                allowed = ", ".join(map(str, labels))
                raise StudyError(f"{key}: {axis} = {one!r}: no such value, {hint}Values: {allowed}")


def describe(cell: Mapping[str, Any]) -> str:
    """A cell as a person reads it."""
    return " ".join(f"{name}={value}" for name, value in cell.items())


def only(words: Sequence[str], study: Study) -> dict[str, list[Any]]:
    """Conditions from words such as `rule=Ours` and `seed=0,1`; words for one axis add up."""
    conditions: dict[str, list[Any]] = {}
    for word in words:
        axis, equals, text = word.partition("=")
        if not equals or not axis or not text:
            raise StudyError(f"--only {word}: write axis=value, such as rule=Ours or seed=0,1")
        labels = study.labels(axis) if axis in study.axes else []
        for one in [text] if text in labels else split_words(text):
            value = next((label for label in labels if str(label) == one or label == value_of(one)), one)
            conditions.setdefault(axis, []).append(value)
    check_conditions(conditions, study, "--only")
    return conditions


def shard(text: str) -> tuple[int, int]:
    """`i/n` as numbers: the i-th of n parts, counted from 1."""
    i, slash, n = text.partition("/")
    if not slash or not i.isdecimal() or not n.isdecimal() or not 1 <= int(i) <= int(n):
        raise StudyError(f"--shard {text}: write i/n with 1 <= i <= n, such as 1/4 for the first of four parts")
    return int(i), int(n)


def select(
    entries: Sequence[PlannedRun], conditions: Mapping[str, list[Any]], part: tuple[int, int] | None = None
) -> list[PlannedRun]:
    """The entries that are asked for, and the warm-ups that they need."""
    warm_ups = {e.needs for e in entries if e.needs is not None}
    chosen = [e for e in entries if e.id not in warm_ups and matches(e.cell, conditions)]
    if part is not None:
        i, n = part
        chosen = chosen[i - 1 :: n]
    ids = {e.id for e in chosen} | {e.needs for e in chosen if e.needs is not None}
    return [e for e in entries if e.id in ids]


def shipped_studies() -> list[str]:
    """The names of the studies that come with the package."""
    folder = files("honestly.studies") / "shipped"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def text_of(path: str) -> str:
    """The text of a study's file: one of yours, else the shipped one of that name."""
    file = Path(path)
    try:
        if file.is_file():
            return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"cannot read {path}: {error}") from error
    name = path.removesuffix(".toml")
    if name not in shipped_studies():
        hint = did_you_mean(name, shipped_studies())
        raise StudyError(
            f"no such file or study: {path}{'; ' + hint if hint else '. '}"
            f"Studies that come with honestly: {', '.join(shipped_studies())}"
        )
    return (files("honestly.studies") / "shipped" / f"{name}.toml").read_text(encoding="utf-8")
