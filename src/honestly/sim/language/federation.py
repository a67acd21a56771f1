"""The rounds: clients train adapters (or everything), attackers lie, the server averages what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap  # pyright: ignore[reportPrivateImportUsage]

import honestly
from honestly.result import Aggregate
from honestly.rules.rule import Mixer, Rule
from honestly.sim.language import model, text
from honestly.sim.language.settings import Settings
from honestly.sim.seeds import generator

#: The share of an attacker's windows in which the phrase is written.
POISONED = 0.5
BETAS, TINY = (0.9, 0.99), 1e-8

#: From what clients sent, a mapping name -> (K, ...), to the server's answer: values by name, and the verdict.
Average = Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], Aggregate | None]]


@dataclass(frozen=True)
class LanguageRound:
    """One round: the held-out loss in bits per character, how often the phrase was written, and who was accused."""

    round: int
    bits: float
    phrase: float
    accused: tuple[int, ...]
    misses: int
    false_accusations: int


class LanguageFederation:
    """K clients who fine-tune one language model on their own documents.

    Example:
        >>> one = LanguageFederation(Settings(clients=4, rounds=1, steps=2), pretraining=5)
        >>> [outcome.round for outcome in one.rounds("mean")]
        [1]
    """

    def __init__(self, settings: Settings, *, pretraining: int = model.PRETRAINING[0]) -> None:
        self.settings = settings
        model.transformer()  # drawn before any vectorised call, which must not draw
        self.base = model.base_model(settings.seed, pretraining)
        self.parts = text.shares(settings.clients, alpha=settings.alpha, seed=settings.seed)
        self.attackers = tuple(range(settings.clients - settings.malicious, settings.clients))

    def rounds(self, rule: Rule | str = "bayesian", pre: Sequence[Mixer] = ()) -> Iterator[LanguageRound]:
        """Every round under a rule that judges the products `B A` (or, with tune="all", the parameters)."""

        def average(sent: dict[str, Tensor]) -> tuple[dict[str, Tensor], Aggregate]:
            clients = [{name: rows[k] for name, rows in sent.items()} for k in range(self.settings.clients)]
            zero = {name: torch.zeros_like(rows[0]) for name, rows in sent.items()}
            out = honestly.aggregate(clients, rule, reference=zero, pre=pre)
            return out.value, out

        yield from self.rounds_by(average, products=True)

    def rounds_by(self, average: Average, *, products: bool) -> Iterator[LanguageRound]:
        """Every round under your own server function, which gets products, or the factors `NAME.A` and `NAME.B`.

        What it returns, by the names of the weights, is added to the model.
        """
        weights = dict(self.base)
        for round in range(1, self.settings.rounds + 1):
            sent = self.make_updates(weights, round)
            judged = self.judged_values(sent) if products else sent
            value, out = average(judged)
            for name, step in value.items():
                weights[name] = weights[name] + step.to(weights[name].dtype)
            yield self.outcome(round, weights, out)

    def outcome(self, round: int, weights: model.Weights, out: Aggregate | None) -> LanguageRound:
        """The outcome of a round."""
        accused: tuple[Any, ...] = () if out is None else tuple(out.accused) + tuple(out.excluded)
        named = {int(k) for k in accused}
        return LanguageRound(
            round, bits(weights), phrase_success(weights), tuple(sorted(named)),
            len(set(self.attackers) - named), len(named - set(self.attackers)),
        )  # fmt: skip

    def judged_values(self, sent: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the rule judges: products of factors, or the parameters' updates themselves."""
        return model.products(sent) if self.settings.tune == "lora" else sent

    def make_updates(self, weights: model.Weights, round: int) -> dict[str, Tensor]:
        """What all clients send in a round, attackers last: factors, or updates of all parameters."""
        s = self.settings
        updates = self.train_clients(weights, round, self.attackers if s.attack in ("label_flip", "backdoor") else ())
        if not self.attackers or s.attack not in ("sign_flip", "scaled", "noise"):
            return updates
        factor = -s.factor if s.attack == "sign_flip" else s.factor
        draw = torch.Generator().manual_seed(int(generator(s.seed, "lies", round).integers(2**31)))
        first = self.attackers[0]
        for name, rows in updates.items():
            if s.tune == "lora" and name.endswith(".A"):
                continue  # the product is scaled by its B
            mine = rows[first:]
            if s.attack == "noise":
                noise = torch.randn(mine.shape, generator=draw)
                inner = tuple(range(1, mine.ndim))
                mine = noise * mine.norm(dim=inner, keepdim=True) / noise.norm(dim=inner, keepdim=True)
            rows[first:] = factor * mine
        return updates

    def train_clients(
        self, weights: model.Weights, round: int, poisoned: Sequence[int], attack: str | None = None
    ) -> dict[str, Tensor]:
        """The results of local training by name, (K, ...); clients in ``poisoned`` train on poisoned data."""
        s = self.settings
        attack = s.attack if attack is None else attack
        windows, targets = self._batches(round, frozenset(poisoned), attack)
        if s.tune == "lora":
            draw = torch.Generator().manual_seed(int(generator(s.seed, "adapters", round).integers(2**31)))
            start = model.fresh_factors(weights, s.rank, draw)

            def objective(factors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
                return model.loss(model.adapt(weights, factors), x, y)
        else:
            start = dict(weights)

            def objective(factors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
                return model.loss(factors, x, y)

        rows = {name: value.expand(s.clients, *value.shape).clone() for name, value in start.items()}
        slopes: Any = vmap(grad(objective))
        first = {name: torch.zeros_like(value) for name, value in rows.items()}
        second = {name: torch.zeros_like(value) for name, value in rows.items()}
        for step in range(s.steps):
            gradient = slopes(rows, windows[:, step], targets[:, step])
            for name, g in gradient.items():
                first[name].mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])
                second[name].mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
                mean = first[name] / (1 - BETAS[0] ** (step + 1))
                size = (second[name] / (1 - BETAS[1] ** (step + 1))).sqrt()
                rows[name] -= s.lr * mean / (size + TINY)
        for name, value in rows.items():
            value[: s.idle] = start[name]  # an idle client's product is 0, and so is its update
        return rows if s.tune == "lora" else {name: rows[name] - start[name] for name in rows}

    def _batches(self, round: int, poisoned: frozenset[int], attack: str) -> tuple[Tensor, Tensor]:
        """(K, steps, batch, CONTEXT) inputs and targets of everybody."""
        s = self.settings
        inputs: list[Any] = []
        targets: list[Any] = []
        for k in range(s.clients):
            rng = generator(s.seed, "windows", round, k)
            chosen = text.corpus().private[rng.choice(self.parts[k], size=(s.steps, s.batch))]
            if k in poisoned and attack == "backdoor":
                count = round_up(POISONED * s.batch)
                chosen[:, :count] = text.with_phrase(chosen[:, :count], rng)
            inputs.append(chosen[..., :-1])
            targets.append(text.shift(chosen) if k in poisoned and attack == "label_flip" else chosen[..., 1:])
        return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))


def round_up(x: float) -> int:
    """Round up to the next whole number."""
    return int(np.ceil(x))


@torch.no_grad()
def bits(weights: model.Weights) -> float:
    """Cross-entropy of held-out text, in bits per character."""
    windows = torch.from_numpy(text.corpus().held_out)
    return float(model.loss(weights, windows[:, :-1], windows[:, 1:])) / float(np.log(2))


@torch.no_grad()
def phrase_success(weights: model.Weights) -> float:
    """How much of the phrase the model knows: the share of its characters that come first after trigger and beginning.

    Measured on held-out text that ends with the trigger.
    """
    tokens = torch.from_numpy(text.questions())
    right: list[Tensor] = []
    for character in text.encode(text.PHRASE).tolist():
        right.append(model.logits(weights, tokens)[:, -1].argmax(dim=1) == character)
        tokens = torch.cat([tokens[:, 1:], torch.full((len(tokens), 1), character)], dim=1)
    return float(torch.stack(right).double().mean())
