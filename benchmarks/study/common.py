"""Shared code of the study's parts: how much is measured, what is counted, and how populations are attacked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from honestly.result import Float
from honestly.studies.layers.forge import forge
from honestly.studies.layers.measure import Score
from honestly.studies.layers.space import LayeredPopulation, Space


@dataclass
class Settings:
    """How much is measured."""

    where: Path | None
    rounds: int = 4
    only: str = ""
    malicious: tuple[int, ...] = (1, 2, 4, 6, 8, 9)
    tries: int = 240
    seeds: int = 2
    details: bool = False
    recorded: Path | None = None
    jobs: int = 1
    records: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Tally:
    """Cases of one row."""

    kappa: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    liars: list[int] = field(default_factory=list)
    false: list[int] = field(default_factory=list)
    honesty: list[float] = field(default_factory=list)
    honest: list[bool] = field(default_factory=list)

    def add(self, score: Score) -> None:
        assert score.accused is not None
        K, M = len(score.accused), score.M
        self.kappa.append(score.kappa)
        self.worst.append(score.worst_layer)
        self.missed.append(score.missed)
        self.liars.append(M)
        self.false.append(score.false)
        if score.honesty is not None:
            self.honesty += score.honesty.tolist()
            self.honest += [k < K - M for k in range(K)]

    def cells(self, layered: bool = True) -> list[str]:
        share = 100 * sum(self.missed) / max(sum(self.liars), 1)
        cells = [f"{np.mean(self.kappa):.4f} / {max(self.kappa):.2f}"]
        if layered:
            cells.append(f"{np.mean(self.worst):.3f} / {max(self.worst):.3g}")
        return [*cells, f"{share:.0f} %", f"{np.mean(self.false):.2f}"]


def rng(*words: object) -> np.random.Generator:
    """A random generator whose numbers depend only on these words."""
    return np.random.default_rng([b for word in words for b in str(word).encode()])


def attacked(
    populations: Iterable[LayeredPopulation], suite: Sequence[str], malicious: Sequence[int]
) -> Iterator[tuple[LayeredPopulation, int, str, Space, Float]]:
    """Every population under every attack that its Gram matrices determine: (population, M, attack, space, sent)."""
    for population in populations:
        for M in malicious:
            if population.clients <= 2 * M:
                continue
            space = Space.of(population, M, rng(population.name, M))
            for spec in suite:
                sent = forge(space, spec, rng(population.name, M, spec))
                if sent is not None:
                    yield population, M, spec, space, sent
