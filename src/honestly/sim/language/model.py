"""A decoder-only transformer for characters, and LoRA adapters on its dense layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.func import functional_call  # pyright: ignore[reportPrivateImportUsage]

from honestly.sim.language.text import ALPHABET, CONTEXT, corpus
from honestly.sim.models.registry import DRAWING
from honestly.sim.seeds import generator

Weights = Mapping[str, Tensor]
WIDTH, HEADS, DEPTH = 32, 2, 2
#: steps, windows in a step and learning rate of the base model's training
PRETRAINING = (800, 16, 1e-2)


class TransformerBlock(nn.Module):
    """Causal attention and a dense layer, each after a normalisation and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.between = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, WIDTH) -> the same."""
        N, T, _ = x.shape
        h = self.before(x)

        def heads(layer: nn.Module) -> Tensor:
            return layer(h).reshape(N, T, HEADS, WIDTH // HEADS).transpose(1, 2)

        scores = heads(self.query) @ heads(self.key).transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        attention = scores.masked_fill(future, -math.inf).softmax(dim=-1) @ heads(self.value)
        x = x + self.out(attention.transpose(1, 2).reshape(N, T, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """Characters in, scores of the next character out."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T) -> (N, T, characters)."""
        x = self.characters(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


#: The layers that get adapters, by the name of their weight.
ADAPTED = tuple(f"blocks.{b}.{layer}" for b in range(DEPTH) for layer in ("query", "value", "up", "down"))


@cache
def transformer() -> Transformer:
    """The architecture; its own weights are never used."""
    with DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Transformer()


def logits(weights: Weights, tokens: Tensor) -> Tensor:
    """(N, T, characters) scores under these weights."""
    return functional_call(transformer(), dict(weights), (tokens,))


def loss(weights: Weights, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next characters, in nats."""
    scores = logits(weights, tokens)
    return nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets.reshape(-1))


def adapt(base: Weights, factors: Weights) -> dict[str, Tensor]:
    """The base model with `W + B A` in every layer that has factors `NAME.A` and `NAME.B`."""
    weights = dict(base)
    for module in ADAPTED:
        if f"{module}.A" in factors:
            weights[f"{module}.weight"] = base[f"{module}.weight"] + factors[f"{module}.B"] @ factors[f"{module}.A"]
    return weights


def fresh_factors(base: Weights, rank: int, draw: torch.Generator) -> dict[str, Tensor]:
    """Factors whose product is 0: A is drawn, B is 0."""
    factors: dict[str, Tensor] = {}
    for module in ADAPTED:
        rows, columns = base[f"{module}.weight"].shape
        factors[f"{module}.A"] = torch.randn(rank, columns, generator=draw) / math.sqrt(columns)
        factors[f"{module}.B"] = torch.zeros(rows, rank)
    return factors


def products(factors: Weights) -> dict[str, Tensor]:
    """`B A` of every module, by the name of its weight; with clients as the first axis, if the factors have it."""
    modules = [name.removesuffix(".A") for name in factors if name.endswith(".A")]
    return {f"{module}.weight": factors[f"{module}.B"] @ factors[f"{module}.A"] for module in modules}


@cache
def base_model(seed: int = 0, steps: int = PRETRAINING[0]) -> dict[str, Tensor]:
    """The weights after training on the public documents: what all clients start from."""
    _, batch, rate = PRETRAINING
    with DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "base model").integers(2**31)))
        module = Transformer()
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    rng, windows = generator(seed, "base text"), corpus().public
    for _ in range(steps):
        chosen = torch.from_numpy(windows[rng.integers(len(windows), size=batch)])
        scores = module(chosen[:, :-1])
        value = nn.functional.cross_entropy(scores.flatten(0, 1), chosen[:, 1:].flatten())
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return {name: weight.detach() for name, weight in module.named_parameters()}
