"""An experiment is a value: validated settings with a canonical form, whose hash is its id."""

from __future__ import annotations

import hashlib
import json
import math
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

from honestly.engine import Pipeline
from honestly.federation.server import make_server
from honestly.hints import did_you_mean
from honestly.own import is_own
from honestly.rules import MIXER_CATALOG, RULE_CATALOG
from honestly.rules.rule import Rule
from honestly.sim.adversary import Adversary
from honestly.sim.attacks import ATTACKS, Attack
from honestly.sim.choices import Choice, parse_choice, separate_mixers, sequence
from honestly.sim.data import DATASETS

# The paper's local training and model, where the data set says nothing else.
TRAINING = {"epochs": 10, "batch": 128, "lr": 0.01}
# Keys added after the first release are left out of the canonical form at their default, so old ids do not change.
LATER = {"warm_up": 0, "buffer": 0, "server": "", "stop": 0, "burst": 1, "turns": 1, "sizes": "none"}
MODEL = "lenet5"
# Settings that a warm-up does not inherit from its experiment.
WARM_UP_LEAVES = (
    *("rule", "pre", "server", "sizes", "root", "attack", "malicious", "dynamic", "chosen"),
    *("start", "stop", "period", "burst", "turns"),
    *("rounds", "evaluate_every", "warm_up"),
)


class Experiment(BaseModel):
    """Everything that decides the numbers of a run.

    >>> a = Experiment.of({"dataset": "digits", "attack": "sign_flip", "malicious": 0.4})
    >>> a.attack.settings, a.adversary.malicious, len(a.id)
    ({'gamma': 4.0}, 8, 64)
    >>> Experiment.of({"clints": 3})
    Traceback (most recent call last):
    honestly.sim.experiment.ExperimentError: clints = 3: unknown key, did you mean clients? ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)

    # the federation
    dataset: str = "digits"
    """`digits` (comes with the package), `mnist`, `fmnist`, `cifar10`, or `file.py:function` of your own"""
    model: str = ""
    """`cnn`, `cnn_norm`, `mlp`, `lenet5`, `resnet8`, `resnet8_plain`, `resnet18`, `resnet18_half`,
    or `file.py:factory` of your own"""
    clients: int = Field(20, ge=1, le=100_000)
    """the number of clients"""
    rounds: int = Field(20, ge=1)
    """the number of rounds; a finished run can be extended"""
    partition: Literal["balanced", "dirichlet", "iid", "shards"] = "balanced"
    """who has which images: Dirichlet by class with equal client sizes (the paper's); plain Dirichlet with unequal
    sizes; independent; sorted shards"""
    alpha: float = Field(0.5, gt=0, le=1e6, allow_inf_nan=False)
    """the parameter of the Dirichlet distribution: the smaller, the more the clients' data differ"""
    participation: float = Field(1.0, gt=0, le=1)
    """share of the clients that are asked per round"""
    dropout: float = Field(0.0, ge=0, lt=1)
    """chance that a client that was asked does not answer"""
    buffer: int = Field(0, ge=0)
    """above 0, the federation is asynchronous: the server averages as soon as this many clients have answered, each
    from the model that it had, with stale updates discounted (FedBuff)"""
    delay: float = Field(1.0, ge=0, le=10, allow_inf_nan=False)
    """with `buffer`: how many versions late an update is on average"""
    # the defence
    rule: Choice = Choice(name="bayesian")
    """the aggregation rule, or `file.py:Class` of your own"""
    pre: tuple[Choice, ...] = ()
    """mixers in front of the rule"""
    server: str = ""
    """the server's optimiser, which is applied to the average: `fedadam:lr=0.03`, `fedyogi`, `fedadagrad`,
    `fedavgm:momentum=0.9`; none if empty"""
    sizes: Literal["none", "images"] = "none"
    """what clients report as their size, for rules that use it: nothing, or the number of images that they trained on
    in the round, each as often as it was used (the paper's code; of training in phases, the last phase counts)"""
    root: int = Field(100, ge=1)
    """the number of the server's own training images, for rules that need a trusted update (`fltrust`)"""
    # the attack
    attack: Choice = Choice(name="none")
    """what malicious clients do, or `file.py:Class` of your own"""
    malicious: float = Field(0.0, ge=0, allow_inf_nan=False)
    """how many clients are malicious: a fraction below 1, or a number"""
    dynamic: bool = False
    """a random number of the malicious clients attacks in each round, the others behave honestly"""
    chosen: Literal["last", "random"] = "last"
    """who is malicious: the last ones by index, or random ones"""
    start: int = Field(1, ge=1)
    """the first round with attacks"""
    stop: int = Field(0, ge=0)
    """the last round with attacks; 0 for no end"""
    period: int = Field(1, ge=1)
    """attack once in this many rounds"""
    burst: int = Field(1, ge=1)
    """attack in this many rounds at the beginning of each period"""
    turns: int = Field(1, ge=1)
    """the number of groups in which malicious clients take turns, one group per round with attacks"""
    warm_up: int = Field(0, ge=0)
    """rounds of plain averaging among honest clients before the first round"""
    # local training
    epochs: int = Field(0, ge=0, le=1_000_000)
    """passes over a client's images per round; every round starts with a new optimiser (SGD)"""
    batch: int = Field(0, ge=0, le=1_000_000)
    """images in a mini-batch"""
    lr: float = Field(0.0, ge=0, allow_inf_nan=False)
    """learning rate"""
    momentum: float = Field(0.9, ge=0, lt=1)
    """of SGD"""
    nesterov: bool = True
    """whether the momentum is Nesterov's"""
    weight_decay: float = Field(1e-4, ge=0, allow_inf_nan=False)
    """of SGD"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16`: layers in bfloat16, parameters in float32"""
    # images
    fit: Literal["pad", "resize"] = "pad"
    """small images are padded (the paper's text) or resized (its code) to the model's size"""
    flip: bool | None = None
    """mirror training images at random"""
    crop: int = Field(0, ge=0, le=16)
    """random crops of images padded by this many pixels"""
    # measuring
    evaluate_every: int = Field(1, ge=1)
    """rounds between evaluations on the full test set"""
    seed: int = Field(0, ge=0, lt=2**63)
    """the seed of everything that is random"""

    @field_validator("dataset")
    @classmethod
    def _check_known(cls, value: str) -> str:
        if value in DATASETS or is_own(value):
            return value
        hint = did_you_mean(value, DATASETS)
        raise ValueError(f"{hint}Allowed: {', '.join(DATASETS)}, or file.py:function of your own")

    @field_validator("server")
    @classmethod
    def _optimiser(cls, value: str) -> str:
        return "" if make_server(value) is None else value

    @field_validator("rule", "attack", mode="before")
    @classmethod
    def _as_choice(cls, value: Any) -> Any:
        return parse_choice(value)

    @field_validator("pre", mode="before")
    @classmethod
    def _as_choices(cls, value: Any) -> Any:
        return sequence(value)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """Fill in what depends on the data set, so the canonical form is complete."""
        if not isinstance(values, dict):
            return values
        values = separate_mixers(dict(values))
        dataset = values.get("dataset", "digits")
        if not isinstance(dataset, str):
            return values
        known = DATASETS.get(dataset)
        if not values.get("model"):
            values["model"] = MODEL if known is None else known.model
        for key, default in {**TRAINING, **({} if known is None else known.training)}.items():
            if values.get(key) is None:
                values[key] = default
            elif values[key] == 0:
                raise ValueError(f"{key} = 0: must be greater than 0")
        if values.get("flip") is None:
            values["flip"] = known is not None and known.flip
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        """Rules and attacks check their own settings; their defaults are written out."""
        pipeline, attack = self.make_pipeline(), self.make_attack()
        M = self.malicious_clients
        if self.malicious >= 1 and self.malicious != int(self.malicious):
            raise ValueError(f"malicious = {self.malicious}: give a fraction below 1 or a whole number of clients")
        if self.clients < self.buffer:
            raise ValueError(f"buffer = {self.buffer}: there are only {self.clients} clients")
        if self.buffer and (self.participation < 1 or self.dropout > 0):
            raise ValueError("buffer decides how many clients answer, so leave participation at 1 and dropout at 0")
        if self.buffer and self.sizes != "none":
            raise ValueError("buffer: updates are weighted by staleness, so leave sizes at none")
        use = getattr(pipeline.rule, "sizes", "")
        if self.sizes == "none" and (use == "trusted" or (use == "capped" and self.rule.name == "mean")):
            raise ValueError(f"rule {self.rule.name}: sizes = {use} needs the clients' sizes: set sizes=images")
        if self.clients < M:
            raise ValueError(f"malicious = {M}: there are only {self.clients} clients")
        if self.stop and self.stop < self.start:
            raise ValueError(f"stop = {self.stop}: attacks begin in round start = {self.start}; give a later one, or 0")
        if self.burst > self.period:
            raise ValueError(f"burst = {self.burst}: must be at most period = {self.period}")
        pipeline.check(self.participants)
        object.__setattr__(self, "rule", self.rule.complete(pipeline.rule))
        object.__setattr__(self, "attack", self.attack.complete(attack))
        object.__setattr__(self, "pre", tuple(c.complete(m) for c, m in zip(self.pre, pipeline.mixers, strict=True)))
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out keys added after the first release if they have their default, so old ids do not change."""
        values: dict[str, Any] = write(self)
        fields = {key: value for key, value in values.items() if LATER.get(key) != value}
        if "buffer" not in fields:
            fields.pop("delay", None)
        return fields

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

        It does not depend on the attack or the rule, so experiments that differ only in those share it.
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
        """The number of clients that are asked per round."""
        return self.buffer or max(1, math.floor(self.participation * self.clients + 0.5))

    def evaluates(self, round: int) -> bool:
        """Whether the model is evaluated after that round: after the last one always."""
        return round % self.evaluate_every == 0 or round == self.rounds

    @property
    def adversary(self) -> Adversary:
        """Who attacks, and when."""
        return Adversary(
            clients=self.clients, malicious=self.malicious_clients, chosen=self.chosen, dynamic=self.dynamic,
            start=self.start, stop=self.stop, period=self.period, burst=self.burst, turns=self.turns, seed=self.seed,
        )  # fmt: skip

    def make_rule(self) -> Rule:
        """A new instance of the rule."""
        return self.rule.make("rule", RULE_CATALOG)

    def make_pipeline(self) -> Pipeline:
        """New instances of the mixers and the rule."""
        return Pipeline(tuple(choice.make("pre", MIXER_CATALOG) for choice in self.pre), self.make_rule())

    def make_attack(self) -> Attack:
        """A new instance of the attack."""
        return self.attack.make("attack", ATTACKS)


class ExperimentError(ValueError):
    """Settings that cannot be run; every line names a key, its value and what is allowed."""
