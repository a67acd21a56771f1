"""What an aggregation returns: the value, whom it believed, whom it refused, and why."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float: TypeAlias = npt.NDArray[np.float64]
ClientId: TypeAlias = Hashable


class AggregationError(ValueError):
    """Too few usable clients for an answer that can be trusted; the message says which were refused and why."""

    def __init__(self, message: str, reasons: Mapping[ClientId, str] | None = None) -> None:
        super().__init__(message)
        self.reasons: dict[ClientId, str] = dict(reasons or {})


class Status(Enum):
    """How a rule ended. The value is a sentence for a person; ``status.ok`` says whether it needs attention."""

    CLOSED_FORM = "computed in closed form"
    CONVERGED = "converged"
    MAJORITY_IDENTICAL = "a majority of the clients sent the same update, which is the answer"
    MAJORITY_BOUND = (
        "close to half of the clients look dishonest: the smallest majority was kept, and the answer may be wrong"
    )
    STEP_LIMIT = "stopped at the limit of steps before convergence"

    @property
    def ok(self) -> bool:
        """False when a person should look at the round."""
        return self not in (Status.MAJORITY_BOUND, Status.STEP_LIMIT)

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """The robust average of K clients and what was learned about them.

    Attributes:
        value: the average: same container, dtype and device as one client's update.
        weights: (K,) float64 that sums to 1, exactly 0 for an excluded client; None for coordinate-wise rules.
        honesty: (K,) posterior probability that client k is honest, 0 for an excluded client;
            None unless the rule infers it.
        excluded: clients refused before averaging (their index, or their id if the input was a mapping).
        reasons: why, one sentence for each excluded client.
        clients: all K clients in order: their indices, or their ids if the input was a mapping.
        status: how the rule ended; its value is a sentence for a person.
        steps: iterations that the rule took.
        diagnostics: what else the rule found, by name.
    """

    value: Any
    weights: Float | None
    honesty: Float | None
    excluded: tuple[ClientId, ...]
    reasons: Mapping[ClientId, str]
    clients: tuple[ClientId, ...]
    status: Status
    steps: int = 0
    diagnostics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def malicious(self) -> float | None:
        """Estimated number of malicious clients, K - sum(honesty); None unless the rule infers honesty."""
        return None if self.honesty is None else float(len(self.honesty) - self.honesty.sum())

    def __repr__(self) -> str:
        parts = [f"clients={len(self.clients)}", f"excluded={self.excluded}", f"status='{self.status}'"]
        if self.malicious is not None:
            parts.insert(1, f"malicious={self.malicious:.2f}")
        return f"Aggregate({', '.join(parts)})"
