"""A run's rounds as the page needs them, out of the records of the simulator or of a federation's history.

A record may have been written by a stranger, an older version or half a process: whatever it holds, what comes
out is small, finite and of one form:

round       its number
accuracy, asr, estimate        numbers or None
belief      for each client that is shown, 0 to 1000, None if it was not there; None if the rule says nothing
attacked, accused              indices of clients; accused is None if the rule accuses nobody by design
here        indices of those who took part; left out if everybody did
false, missed                  how many were accused wrongly and how many attackers were not
excluded    index -> why the client was refused
note        how the round ended, if a person should look at it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from honestly.show.live.clean import fields, flat, items, number, text, whole
from honestly.show.live.model import Detail

MOST_CLIENTS = 256  # rows of a heatmap beyond this are no longer seen; a sample of the clients is sent
MOST_ROUNDS = 5000


def detail(records: Sequence[Any], experiment: Any) -> Detail:
    """One run in detail; never raises, whatever the records hold.

    >>> found = detail([{"round": 1, "accuracy": 0.5, "honesty": [1.0, 0.25], "attacked": [1]}], {"clients": 2})
    >>> found.rounds[0]["belief"], found.rounds[0]["attacked"], found.belief
    ([1000, 250], [1], 'honesty')
    """
    known = [fields(record) for record in records[-MOST_ROUNDS:]]
    roster = next((items(r["clients"]) for r in reversed(known) if isinstance(r.get("clients"), list)), None)
    names = None if roster is None else tuple(text(name, 100) for name in roster)
    clients = _how_many(known, experiment, names)
    shown = _sample(clients)
    key: Literal["honesty", "weights"] | None = next(
        (k for k in ("honesty", "weights") if any(items(r.get(k)) for r in known)), None
    )
    index: dict[Any, int] = {} if roster is None else {str(name): k for k, name in enumerate(roster)}
    return Detail(
        clients=clients,
        shown=shown,
        names=None if names is None else tuple(names[k] for k in shown),
        belief=None if key is None else "honesty" if key == "honesty" else "weight",
        truth=names is None,
        settings=flat(experiment),
        rounds=tuple(_round(r, t, key, shown, index) for t, r in enumerate(known)),
    )


def _how_many(records: Sequence[Mapping[str, Any]], experiment: Any, names: Sequence[str] | None) -> int:
    if names is not None:
        return len(names)
    told = whole(fields(experiment).get("clients"), most=10**6)
    if told:
        return told
    seen = 0
    for record in records:
        for key in ("honesty", "weights"):
            seen = max(seen, len(items(record.get(key))))
        here = [whole(k, most=10**6) for k in items(record.get("participants"))]
        seen = max([seen, *(k + 1 for k in here if k is not None)])
    return seen


def _sample(clients: int) -> tuple[int, ...]:
    """All clients, or some at equal distances: simulated attackers are the last ones by index."""
    if clients <= MOST_CLIENTS:
        return tuple(range(clients))
    return tuple(round(i * (clients - 1) / (MOST_CLIENTS - 1)) for i in range(MOST_CLIENTS))


def _round(
    record: Mapping[str, Any], t: int, key: str | None, shown: Sequence[int], index: Mapping[Any, int]
) -> dict[str, Any]:
    visible = set(shown)

    def clients(value: Any) -> list[int]:
        found = {index.get(item) if isinstance(item, str) and index else whole(item) for item in items(value)}
        return sorted(k for k in found if k is not None and k in visible)

    reasons = fields(record.get("reasons"))
    excluded: dict[str, str] = {}
    for item in items(record.get("excluded")):
        k = index.get(item) if isinstance(item, str) and index else whole(item)
        if k is not None and k in visible:
            excluded[str(k)] = text(reasons.get(str(item)))
    slim: dict[str, Any] = {
        "round": whole(record.get("round")) or t + 1,
        "accuracy": number(record.get("accuracy")),
        "asr": number(record.get("asr")),
        "estimate": number(record.get("malicious_estimate"), 2),
        "belief": _belief(items(record.get(key)), key, shown) if key else None,
        "attacked": clients(record.get("attacked")),
        "accused": clients(record.get("accused")) if isinstance(record.get("accused"), list) else None,
        "false": number(record.get("false_accusations"), 2),
        "missed": number(record.get("misses"), 2),
    }
    status = text(record.get("status"))
    here = clients(record.get("participants"))
    if here and len(here) < len(shown):
        slim["here"] = here
    if excluded:
        slim["excluded"] = excluded
    if record.get("kept") is True or record.get("attention") is True or status.startswith("refused"):
        slim["note"] = status
    return slim


def _belief(values: Sequence[Any], key: str | None, shown: Sequence[int]) -> list[int | None] | None:
    if not values:
        return None
    found = [number(values[k], 9) if k < len(values) else None for k in shown]
    largest = 1.0
    if key == "weights":  # relative to the largest one of the round
        largest = max((v for v in map(number, values) if v is not None), default=0.0) or 1.0
    return [None if v is None else round(1000 * min(max(v / largest, 0.0), 1.0)) for v in found]
