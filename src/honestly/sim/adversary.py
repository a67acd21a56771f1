"""Which clients attack, and in which rounds. What they send is decided by the attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from honestly.sim.seeds import generator

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """The malicious clients and the rounds in which each of them attacks.

    Args:
        clients: number of clients K.
        malicious: how many of them are malicious.
        chosen: "last" by index, as in the paper, or drawn at "random".
        dynamic: in each round a number n ~ Uniform{0 .. malicious} of them, drawn at random, attack and the others
            behave honestly (the paper's configuration 3).
        start: the first round with attacks; everybody is honest before.
        stop: the last round with attacks; 0 means that they never end.
        period: attack only in every ``period``-th round from ``start`` on.
        burst: attack in the first ``burst`` of every ``period`` rounds, and behave honestly in the others.
        turns: the number of groups that take turns, one group per round with attacks; the i-th malicious client is in
            group i mod ``turns``.
        seed: the seed of all random draws.

    >>> Adversary(clients=5, malicious=2).active(round=7)
    array([False, False, False,  True,  True])
    >>> [int(Adversary(clients=5, malicious=2, start=2, period=3).active(round=r).sum()) for r in range(1, 7)]
    [0, 2, 0, 0, 2, 0]
    >>> [int(Adversary(clients=5, malicious=2, period=3, burst=2, stop=4).active(round=r).sum()) for r in range(1, 7)]
    [2, 2, 0, 2, 0, 0]
    >>> [Adversary(clients=4, malicious=3, turns=2).active(round=r).nonzero()[0].tolist() for r in range(1, 4)]
    [[1, 3], [2], [1, 3]]
    """

    clients: int
    malicious: int
    chosen: Literal["last", "random"] = "last"
    dynamic: bool = False
    start: int = 1
    stop: int = 0
    period: int = 1
    burst: int = 1
    turns: int = 1
    seed: int = 0

    @property
    def attackers(self) -> tuple[int, ...]:
        """The malicious clients, in ascending order."""
        if self.chosen == "last":
            return tuple(range(self.clients - self.malicious, self.clients))
        drawn = generator(self.seed, "malicious").choice(self.clients, size=self.malicious, replace=False)
        return tuple(sorted(int(k) for k in drawn))

    def active(self, *, round: int) -> Mask:
        """(K,) which clients attack in this round; rounds count from 1."""
        mask = np.zeros(self.clients, dtype=np.bool_)
        cycle, phase = divmod(round - self.start, self.period)
        if round < self.start or (self.stop and round > self.stop) or phase >= self.burst:
            return mask
        who = np.array(self.attackers, dtype=np.int64)
        who = who[(cycle * self.burst + phase) % self.turns :: self.turns]
        if self.dynamic:
            rng = generator(self.seed, "attackers", round)
            who = rng.choice(who, size=int(rng.integers(0, len(who) + 1)), replace=False) if len(who) else who
        mask[who] = True
        return mask
