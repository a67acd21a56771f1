"""The record of a round on the server: who was believed, who was excluded and why, and whether the model changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from honestly.federation.names import Names
from honestly.printable import printable
from honestly.result import Aggregate, ClientId, Verdict
from honestly.runs.record import COMPANY, RoundRecord

#: What apps call the accuracy in their metrics; the first one found is the round's.
ACCURACY = ("accuracy", "eval_acc", "eval-acc", "test_acc", "acc")


@dataclass(frozen=True)
class Reply:
    """A client's reply as read by an adapter: an update, or the reason why there is none.

    `absent` marks a client that failed to answer (its app crashed, the connection broke), as opposed to one that
    answered wrongly.
    """

    client: ClientId
    update: Any = None
    fault: str | None = None
    size: Any = None
    metrics: Mapping[str, Any] | None = None
    absent: bool = False


@dataclass
class Round:
    """One round of a federation as the server saw it.

    Attributes:
        number: the round, counted from 1.
        clients: all clients that were asked or answered.
        honesty: posterior probability that a client is honest, 0 if it was excluded; None unless the rule infers it.
        weights: a client's share in the new model, 0 if it was excluded; None for coordinate-wise rules.
        excluded: clients that were excluded, with the reason; clients that did not answer are included.
        kept: True if the old model was kept, and `status` says why.
        status: how the round ended, a sentence for a person.
        attention: True if someone should look at the round.
        metrics: the robust average of what the clients reported; `evaluation` that of the evaluation that followed.
        seconds: the duration of the decision.
        verdicts: what the round says of each client, see `honestly.result.Verdict`; None if there was no average.
        accusations: why clients were accused, where the rule says so.
        spread: median distance of the believed updates from the average; None if it was not measured.
        claimed, used: each client's share of the claimed sizes, and of the sizes that are used, which would be its
            weight if all clients were believed; None where sizes are not used.
        names: the clients' labels, for files and people; the other attributes use ids.
    """

    number: int
    clients: tuple[ClientId, ...]
    honesty: dict[ClientId, float] | None
    weights: dict[ClientId, float] | None
    excluded: dict[ClientId, str]
    kept: bool
    status: str
    attention: bool
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    evaluation: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0
    verdicts: dict[ClientId, Verdict] | None = None
    claimed: dict[ClientId, float] | None = None
    used: dict[ClientId, float] | None = None
    names: Names = field(default_factory=Names)
    spread: float | None = None
    accusations: dict[ClientId, str] = field(default_factory=dict[ClientId, str])

    @classmethod
    def of(
        cls,
        number: int,
        clients: Sequence[ClientId],
        out: Aggregate | None,
        excluded: Mapping[ClientId, str],
        **more: Any,
    ) -> Round:
        """The record of an average, if there was one; clients that were excluded before it are in `excluded`.

        Attributes in `more` replace those that follow from the average; without one, they say how the round ended.
        """
        ordered = {client: excluded[client] for client in clients if client in excluded}
        if out is None:
            return cls(number, tuple(clients), None, None, ordered, **more)

        def shares(values: Any) -> dict[ClientId, float] | None:
            if values is None:
                return None
            return dict.fromkeys(clients, 0.0) | dict(zip(out.clients, map(float, values), strict=True))

        verdicts = dict.fromkeys(clients, Verdict.EXCLUDED) | dict(zip(out.clients, out.verdicts, strict=True))
        fields: dict[str, Any] = {
            "kept": False, "status": str(out.status), "attention": out.status.doubtful, "verdicts": verdicts,
            "claimed": shares(out.diagnostics.get("claimed_shares")),
            "used": shares(out.diagnostics.get("used_shares")), "spread": spread_of(out),
            "accusations": out.accusations,
        }  # fmt: skip
        return cls(number, tuple(clients), shares(out.honesty), shares(out.weights), ordered, **{**fields, **more})

    @property
    def malicious(self) -> float | None:
        """Estimated number of malicious clients: how many are accused; None unless honesty is inferred."""
        return None if self.honesty is None else float(len(self.accused))

    @property
    def accused(self) -> tuple[ClientId, ...]:
        """Clients that were judged to lie; excluded clients are not among them."""
        if self.verdicts is not None:
            return tuple(client for client, verdict in self.verdicts.items() if verdict is Verdict.ACCUSED)
        honesty = self.honesty or {}
        return tuple(client for client, p in honesty.items() if p < 0.5 and client not in self.excluded)

    def named_accusations(self) -> dict[ClientId, str]:
        """Why clients were accused; a sentence that mentions other clients has their names instead of their ids."""
        if not self.names:
            return self.accusations
        names = {printable(client)[:60]: self.names(client) for client in self.accused}

        def company(match: re.Match[str]) -> str:
            return "".join(names.get(part, part) for part in re.split(r"(, | and \d+ more$)", match[0]))

        return {client: COMPANY.sub(company, why, count=1) for client, why in self.accusations.items()}

    def votes(self) -> dict[ClientId, float]:
        """How much a client's metrics count: its honesty, else its weight, else 1; 0 if it was excluded."""
        votes = dict.fromkeys(self.clients, 1.0)
        votes |= (self.honesty if self.honesty is not None else self.weights) or {}
        return votes | dict.fromkeys(self.excluded, 0.0)

    @property
    def averaged(self) -> bool:
        """Whether there was an average, even if the old model was kept."""
        return not self.kept or not (self.verdicts is None and self.honesty is None and self.weights is None)

    @property
    def least_vote(self) -> float:
        """A client is believed if its vote is above this: more likely honest than not, or with a weight."""
        return 0.5 if self.honesty is not None else 0.0

    def named_metrics(self) -> dict[str, float]:
        """The verdict on every client as metrics, for frameworks that know nothing else: `honesty/<client>`, ..."""
        metrics: dict[str, float] = {f"honesty/{self.names(client)}": p for client, p in (self.honesty or {}).items()}
        if self.malicious is not None:
            metrics["malicious"] = self.malicious
        metrics |= {f"refused/{self.names(client)}": 1 for client in self.excluded}
        return metrics | {"kept-old-model": int(self.kept)}

    def as_json(self, roster: Sequence[ClientId] | None = None) -> dict[str, Any]:
        """The round as plain values, in the form of the simulator's rounds, so the same report draws both.

        `roster` names all clients of the federation: `honesty` and `weights` follow its order, None where a client was
        not part of the round. Client ids become text, since JSON's numbers do not hold 64 bits. If clients have
        names, these are used, and the ids are in `ids`, in the order of `clients`.
        """
        label = self.names
        roster = list(dict.fromkeys([*(self.clients if roster is None else roster), *self.excluded, *self.accused]))
        here = set(self.clients)

        def column(values: Mapping[ClientId, float] | None) -> list[float | None] | None:
            return None if values is None else [values.get(client) if client in here else None for client in roster]

        index = {client: k for k, client in enumerate(roster)}
        accuracy = next((m[key] for m in (self.evaluation, self.metrics) for key in ACCURACY if key in m), None)
        record = RoundRecord(
            round=self.number,
            accuracy=accuracy,
            participants=[k for k, client in enumerate(roster) if client in here],
            clients=[label(client) for client in roster],
            honesty=column(self.honesty),
            weights=column(self.weights),
            excluded=[index[client] for client in self.excluded],
            reasons={label(client): reason for client, reason in self.excluded.items()},
            accused=[index[client] for client in self.accused],
            accusations={label(client): why for client, why in self.named_accusations().items()},
            malicious_estimate=self.malicious,
            kept=self.kept,
            status=self.status,
            attention=self.attention,
            metrics=self.metrics,
            evaluation=self.evaluation,
            seconds=round(self.seconds, 4),
            spread=self.spread,
        ).as_json()
        shares = {"claimed": self.claimed, "used": self.used}
        record |= {name: column(values) for name, values in shares.items() if values is not None}
        return record | {"ids": [str(client) for client in roster]} if label else record


def spread_of(out: Aggregate) -> float | None:
    """The median distance of the believed clients' updates from the average, if the rule measured distances."""
    distance = out.diagnostics.get("distance")
    if distance is None or len(distance) != len(out.clients):
        return None
    unused = (Verdict.ACCUSED, Verdict.EXCLUDED)
    near = [float(d) for d, verdict in zip(distance, out.verdicts, strict=True) if verdict not in unused]
    return float(np.median(near)) if near and np.isfinite(near).all() else None
