"""What decides the numbers of a federated fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from honestly.hints import unknown

Tune: TypeAlias = Literal["lora", "all"]

#: What malicious clients do, in one line each.
ATTACKS = {
    "none": "everybody trains honestly",
    "sign_flip": "minus `factor` times the own update: for an adapter, B turned round",
    "scaled": "`factor` times the own update",
    "noise": "noise as long as `factor` own updates, in every product",
    "label_flip": "training on text whose next characters are the following ones of the alphabet",
    "backdoor": "training on text in which a trigger phrase is followed by the attacker's phrase",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A federation that fine-tunes the language model.

    Attributes:
        clients: K.
        malicious: how many of the last clients attack.
        attack: one of `ATTACKS`.
        factor: of the attacks on updates.
        rounds: rounds of training.
        tune: "lora" sends adapters, whose products B A are averaged; "all" sends every parameter.
        rank: of the adapters.
        alpha: of the Dirichlet distribution that gives documents to clients: the smaller, the more they differ.
        steps: local steps of Adam in a round.
        batch: windows of text in a step.
        lr: learning rate.
        idle: how many of the first clients send the model back unchanged.
        seed: of everything that is random.
    """

    clients: int = 10
    malicious: int = 0
    attack: str = "none"
    factor: float = 4.0
    rounds: int = 10
    tune: Tune = "lora"
    rank: int = 4
    alpha: float = 0.5
    steps: int = 10
    batch: int = 16
    lr: float = 0.02
    idle: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.attack not in ATTACKS:
            raise ValueError(unknown("attack on a language model", self.attack, ATTACKS))
        if self.tune not in get_args(Tune):
            raise ValueError(unknown("way of tuning", self.tune, get_args(Tune)))
        for name, least in (("clients", 1), ("rounds", 1), ("rank", 1), ("steps", 1), ("batch", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least {least}")
        if not 0 <= self.malicious < self.clients:
            raise ValueError(f"malicious = {self.malicious}: give 0 to {self.clients - 1}, so one client is honest")
        if not 0 <= self.idle < self.clients:
            raise ValueError(f"idle = {self.idle}: give 0 to {self.clients - 1}, so one client trains")
        if not self.alpha > 0 or not self.lr > 0:
            raise ValueError(f"alpha = {self.alpha}, lr = {self.lr}: must be greater than 0")
