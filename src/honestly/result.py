"""What an aggregation returns: the value, which clients it believed, which it excluded, and why."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float: TypeAlias = npt.NDArray[np.float64]
ClientId: TypeAlias = Hashable
#: How the sentence on a client begins if the rule gives its honesty alone.
BELIEVED, DISBELIEVED = "is believed", "is not believed"


class AggregationError(ValueError):
    """Too few usable clients for an answer that can be trusted; the message says which were excluded, and why."""

    def __init__(self, message: str, reasons: Mapping[ClientId, str] | None = None) -> None:
        super().__init__(message)
        self.reasons: dict[ClientId, str] = dict(reasons or {})


class Verdict(str, Enum):  # noqa: UP042 - a StrEnum would ask Python 3.11 of the exported file
    """What a round says about one client. A verdict equals its word: `Verdict.ACCUSED == "accused"`."""

    TRUSTED = "trusted"
    #: far from the others on its own: its update counts for less, but it is not accused
    UNUSUAL = "unusual"
    #: judged to lie
    ACCUSED = "accused"
    #: unusable, and left out before averaging
    EXCLUDED = "excluded"
    #: sent the reference unchanged, while others moved
    ABSTAINED = "abstained"

    def __str__(self) -> str:
        return self.value

    __format__ = str.__format__


class Status(Enum):
    """How a round ended. The value is a sentence to read; a program should use ``ok`` and ``doubtful``.

    A round is *ok*, or *doubtful* (there is an answer, which someone should check), or it is refused with an
    `AggregationError` and has no answer.
    """

    CLOSED_FORM = "computed in closed form"
    CONVERGED = "converged"
    MAJORITY_IDENTICAL = "a majority of the clients sent the same update, which is the answer"
    MAJORITY_BOUND = "more clients look dishonest than may lie: nobody was accused, and the answer may be wrong"
    STEP_LIMIT = "stopped at the limit of steps before convergence"
    CONTRADICTION = "two clients contradict one another, and nothing tells which of them is right"

    @property
    def ok(self) -> bool:
        """False if someone should look at the round."""
        return not self.doubtful

    @property
    def doubtful(self) -> bool:
        """True if the answer may be wrong and someone should look at the round."""
        return self in (Status.MAJORITY_BOUND, Status.STEP_LIMIT, Status.CONTRADICTION)

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """The robust average of K clients, and what the rule inferred about them.

    Attributes:
        value: the average: same container, dtype and device as one client's update.
        weights: (K,) float64 that sums to 1, exactly 0 for an excluded client; None for coordinate-wise rules.
        honesty: (K,) posterior probability that client k is honest, 0 for an excluded client;
            None unless the rule infers it.
        excluded: clients left out before averaging (their index, or their id if the input was a mapping).
        reasons: why they were left out, one sentence for each excluded client.
        clients: all K clients in order: their indices, or their ids if the input was a mapping.
        status: how the rule ended, as a sentence; ``status.ok`` and ``status.doubtful`` say whether someone should
            look at the round.
        verdicts: one `Verdict` per client: trusted, unusual, accused, excluded or abstained.
        explanations: one sentence per client that says why.
        steps: iterations that the rule took.
        diagnostics: whatever else the rule reports, by name. For rules that judge layers, "layers" is the evidence
            against each client in each layer, (K, L), NaN for an excluded client, and "layer_names" has the names of
            the layers.
    """

    value: Any
    weights: Float | None
    honesty: Float | None
    excluded: tuple[ClientId, ...]
    reasons: Mapping[ClientId, str]
    clients: tuple[ClientId, ...]
    status: Status
    verdicts: tuple[Verdict, ...] = ()
    explanations: tuple[str, ...] = ()
    steps: int = 0
    diagnostics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accused(self) -> tuple[ClientId, ...]:
        """The clients that are judged to lie; () if the rule does not judge."""
        pairs = zip(self.clients, self.verdicts, strict=False)
        return tuple(client for client, verdict in pairs if verdict is Verdict.ACCUSED)

    @property
    def accusations(self) -> dict[ClientId, str]:
        """Why clients are accused: a sentence for each client, if the rule explains more than its honesty."""
        each = zip(self.clients, self.verdicts, self.explanations, strict=False)
        return {
            client: why
            for client, verdict, why in each
            if verdict is Verdict.ACCUSED and not why.startswith(DISBELIEVED)
        }

    @property
    def malicious(self) -> float | None:
        """Estimated number of malicious clients, which is how many are accused; None unless the rule judges.

        Excluded clients are not counted.
        """
        return None if self.honesty is None else float(len(self.accused))

    def summary(self) -> str:
        """The round in one sentence, for a log.

        Example:
            >>> import numpy as np, honestly as hn
            >>> hn.aggregate(np.ones((5, 3)), "mean").summary()
            '5 clients: 5 trusted; computed in closed form'
        """
        count = len(self.clients)
        parts: list[str] = []
        for verdict in Verdict:
            named = [_readable(c) for c, v in zip(self.clients, self.verdicts, strict=False) if v is verdict]
            if not named:
                continue
            listed = ", ".join(named[:10]) + (f" and {len(named) - 10} more" if len(named) > 10 else "")
            parts.append(f"{len(named)} {verdict}" + ("" if verdict is Verdict.TRUSTED else f" ({listed})"))
        doubt = "doubtful: " if self.status.doubtful else ""
        return f"{count} client{'s' * (count != 1)}: {', '.join(parts) or 'none judged'}; {doubt}{self.status}"

    def __repr__(self) -> str:
        parts = [f"clients={len(self.clients)}", f"excluded={self.excluded}", f"status='{self.status}'"]
        if self.malicious is not None:
            parts.insert(1, f"accused={self.accused}")
        return f"Aggregate({', '.join(parts)})"


def _readable(client: ClientId) -> str:
    """A client's name, which is untrusted text, on one line."""
    text = str(client)[:60]
    return text if text.isprintable() else repr(text)
