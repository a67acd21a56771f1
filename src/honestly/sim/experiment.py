"""An experiment is a value: validated settings with a canonical form, whose hash is its id."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from honestly.rules import MIXERS, RULES, make, make_mixer
from honestly.rules.base import Mixer, Rule
from honestly.rules.memory import Memory
from honestly.sim import attacks
from honestly.sim.adversary import Adversary
from honestly.sim.own import is_own

MODEL_FOR = {"digits": "cnn", "mnist": "lenet5", "fmnist": "lenet5", "cifar10": "resnet18"}
# The paper's local training; digits has a hundredth of the images, so it takes smaller and larger steps.
TRAINING_FOR = {"digits": {"epochs": 4, "batch": 16, "lr": 0.05}}
TRAINING = {"epochs": 10, "batch": 128, "lr": 0.01}
# What a warm-up does not take over from the experiment that it is for.
WARM_UP_LEAVES = (
    *("rule", "pre", "root", "attack", "malicious", "dynamic", "chosen", "start", "period"),
    *("rounds", "evaluate_every", "warm_up"),
)


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


class Experiment(BaseModel):
    """Everything that decides the numbers of a run.

    >>> a = Experiment.of({"dataset": "digits", "attack": "sign_flip", "malicious": 0.4})
    >>> a.attack.settings, a.adversary.malicious, len(a.id)
    ({'gamma': 4.0}, 8, 64)
    >>> Experiment.of({"clints": 3})
    Traceback (most recent call last):
    honestly.sim.experiment.ExperimentError: clints = 3: unknown key, did you mean clients? ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # the federation
    dataset: str = "digits"
    model: str = ""
    clients: int = Field(20, ge=1, le=100_000)
    rounds: int = Field(20, ge=1)
    partition: Literal["balanced", "dirichlet", "iid", "shards"] = "balanced"
    alpha: float = Field(0.5, gt=0, le=1e6, allow_inf_nan=False)
    participation: float = Field(1.0, gt=0, le=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    # the defence
    rule: Choice = Choice(name="bayesian")
    pre: tuple[Choice, ...] = ()
    root: int = Field(100, ge=1)
    # the attack
    attack: Choice = Choice(name="none")
    malicious: float = Field(0.0, ge=0, allow_inf_nan=False)
    dynamic: bool = False
    chosen: Literal["last", "random"] = "last"
    start: int = Field(1, ge=1)
    period: int = Field(1, ge=1)
    warm_up: int = Field(0, ge=0)
    # local training
    epochs: int = Field(0, ge=0)
    batch: int = Field(0, ge=0)
    lr: float = Field(0.0, ge=0, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(1e-4, ge=0, allow_inf_nan=False)
    precision: Literal["fp32", "bf16"] = "fp32"
    # images
    fit: Literal["pad", "resize"] = "pad"
    flip: bool | None = None
    crop: int = Field(0, ge=0, le=16)
    # measuring
    evaluate_every: int = Field(1, ge=1)
    seed: int = Field(0, ge=0, lt=2**63)

    @field_validator("dataset")
    @classmethod
    def _known(cls, value: str) -> str:
        if value in MODEL_FOR or is_own(value):
            return value
        close = difflib.get_close_matches(value, MODEL_FOR, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"{hint}Allowed: {', '.join(MODEL_FOR)}, or file.py:function of your own")

    @field_validator("rule", "attack", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return Choice.named(value)

    @field_validator("pre", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if isinstance(value, str | dict):
            value = [value]
        return tuple(Choice.named(v) for v in value) if isinstance(value, list | tuple) else value

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """What depends on the data set is written out, so that the canonical form says everything."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        dataset = values.get("dataset", "digits")
        if not isinstance(dataset, str):
            return values
        if not values.get("model"):
            values["model"] = MODEL_FOR.get(dataset, "lenet5")
        for key, default in {**TRAINING, **TRAINING_FOR.get(dataset, {})}.items():
            if values.get(key) is None:
                values[key] = default
            elif values[key] == 0:
                raise ValueError(f"{key} = 0: must be greater than 0")
        if values.get("flip") is None:
            values["flip"] = dataset == "cifar10"
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        """Rules and attacks check their own settings; their defaults are written out."""
        rule, mixers, attack = self.make_rule(), self.make_mixers(), self.make_attack()
        M = self.malicious_clients
        if self.malicious >= 1 and self.malicious != int(self.malicious):
            raise ValueError(f"malicious = {self.malicious}: give a fraction below 1 or a whole number of clients")
        if self.clients < M:
            raise ValueError(f"malicious = {M}: there are only {self.clients} clients")
        (mixers[0] if mixers else rule).check(self.participants)
        for key, made in (("rule", rule), ("attack", attack)):
            full = Choice.model_validate({"name": made.name, **_settings(made)})
            object.__setattr__(self, key, full)
        full_pre = tuple(Choice.model_validate({"name": m.name, **_settings(m)}) for m in mixers)
        object.__setattr__(self, "pre", full_pre)
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A key that came after the first release is left out at its default, so that ids stay what they were."""
        values: dict[str, Any] = write(self)
        if values.get("warm_up") == 0:
            del values["warm_up"]
        return values

    @classmethod
    def of(cls, values: dict[str, Any]) -> Experiment:
        """An experiment from plain values; an `ExperimentError` names the key, the value and what is allowed."""
        from honestly.sim.messages import explain

        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ExperimentError(explain(error, values, cls)) from error

    @property
    def canonical(self) -> str:
        """The settings as JSON with sorted keys: the same experiment always gives the same text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def id(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def before(self) -> Experiment | None:
        """The run whose final model this one starts from: ``warm_up`` rounds of plain averaging among honest clients.

        It depends on nothing of the attack and the rule, so that experiments which differ in those share it.
        """
        if not self.warm_up:
            return None
        settings = self.model_dump(exclude=set(WARM_UP_LEAVES))
        return Experiment.of({**settings, "rule": "mean", "rounds": self.warm_up, "evaluate_every": self.warm_up})

    @property
    def malicious_clients(self) -> int:
        """How many clients are malicious: ``malicious`` is a fraction below 1, else a number."""
        return round(self.malicious * self.clients) if self.malicious < 1 else int(self.malicious)

    @property
    def participants(self) -> int:
        """How many clients are asked in each round."""
        return max(1, math.floor(self.participation * self.clients + 0.5))

    @property
    def adversary(self) -> Adversary:
        """Who attacks, and when."""
        return Adversary(
            clients=self.clients, malicious=self.malicious_clients, chosen=self.chosen, dynamic=self.dynamic,
            start=self.start, period=self.period, seed=self.seed,
        )  # fmt: skip

    def make_rule(self) -> Rule:
        """The rule, freshly made."""
        return make(self.rule.name, **typed("rule", self.rule, RULES))

    def make_mixers(self) -> list[Mixer]:
        """The mixers in front of the rule."""
        return [make_mixer(c.name, **typed("pre", c, MIXERS)) for c in self.pre]

    def make_attack(self) -> attacks.Attack:
        """The attack, freshly made."""
        return attacks.make(self.attack.name, **typed("attack", self.attack, attacks.attacks()))


class ExperimentError(ValueError):
    """Settings that cannot be run; every line names a key, its value and what is allowed."""


def typed(key: str, choice: Choice, known: Sequence[type[Any]]) -> dict[str, Any]:
    """The settings of a choice as their owner wants them: 4 becomes 4.0 for a float, and text is no number.

    Names that nobody knows are left for their owner to refuse.
    """
    owner = next((one for one in known if one.name == choice.name), None)
    settings = choice.settings
    for field in () if owner is None else dataclasses.fields(owner):
        if field.name not in settings:
            continue
        value, kind = settings[field.name], str(field.type)
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
