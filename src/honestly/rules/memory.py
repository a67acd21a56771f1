"""What a rule remembers of each client between rounds: a Beta posterior of its honesty, with forgetting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from honestly.result import ClientId, Float
from honestly.rules.settings import number


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Suspicion that outlasts a round: `Beta(1 + honest_k, dishonest_k)` for each client id, with forgetting.

        honest_k <- forgetting * honest_k + q_k,    dishonest_k <- forgetting * dishonest_k + 1 - q_k
        prior log-odds of the next round:  ln((1 + honest_k) / (1 + honest_k + dishonest_k)) <= 0

    Suspicion is remembered; trust cannot be accumulated: a client that behaved for a hundred rounds starts the next
    one like a newcomer. q_k is what this round's evidence alone says of the client, at even odds: earlier suspicion
    does not feed on itself, and no client's claims about others count. Likeness does not tell who copied whom, so an
    honest client that a liar copies is suspected with it. Absent clients are forgiven at the same rate.

    Args:
        forgetting: share of the past that is kept in a round, in [0, 1); 0.9 looks back about ten rounds.
        records: id -> (honest, dishonest), discounted numbers of rounds.

    Example:
        >>> memory = Memory().with_round(["a", "b"], np.array([1.0, 0.0]))
        >>> memory.prior(["a", "b", "newcomer"]).round(2)
        array([ 0.  , -0.69,  0.  ])
        >>> Memory.from_dict(memory.to_dict()) == memory
        True
    """

    forgetting: float = 0.9
    records: Mapping[ClientId, tuple[float, float]] = field(default_factory=dict[ClientId, tuple[float, float]])

    def __post_init__(self) -> None:
        number(self, "forgetting", self.forgetting, least=0.0, below=1.0)

    def prior(self, ids: Sequence[ClientId]) -> Float:
        """(K,) log-odds to start the round with, at most 0."""
        counts = np.array([self.records.get(name, (0.0, 0.0)) for name in ids], dtype=np.float64).reshape(-1, 2)
        honest, dishonest = 1.0 + counts[:, 0], counts[:, 1]
        return np.log(honest / (honest + dishonest))

    def with_round(self, ids: Sequence[ClientId], q: Float) -> Memory:
        """The memory after a round in which the clients `ids` looked honest with probabilities `q`."""
        records = {
            name: (self.forgetting * honest, self.forgetting * dishonest)
            for name, (honest, dishonest) in self.records.items()
            if self.forgetting * max(honest, dishonest) > 1e-6
        }
        for name, p in zip(ids, q.tolist(), strict=True):
            honest, dishonest = records.get(name, (0.0, 0.0))
            records[name] = (honest + p, dishonest + 1.0 - p)
        return Memory(forgetting=self.forgetting, records=records)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for a checkpoint. Ids stay what they are (JSON keeps strings and integers)."""
        records = [[name, honest, dishonest] for name, (honest, dishonest) in self.records.items()]
        return {"forgetting": self.forgetting, "records": records}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Memory:
        """The memory that `to_dict` wrote. Raises ValueError for anything else."""
        try:
            records = {name: (float(honest), float(dishonest)) for name, honest, dishonest in state["records"]}
            forgetting = float(state["forgetting"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a memory written by `Memory.to_dict`: {str(state)[:100]}") from error
        wrong = next((n for n, pair in records.items() if not all(0.0 <= x < math.inf for x in pair)), None)
        if wrong is not None:
            raise ValueError(f"the record of client {wrong!r} is {records[wrong]}, expected two numbers >= 0")
        return cls(forgetting=forgetting, records=records)
