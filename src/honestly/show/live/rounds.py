"""A run's rounds as the page needs them, out of the records of the simulator or of a federation's history.

A record may come from a stranger, an older version or a process that was killed. Whatever it holds, the result is
small, finite and has these fields:

round       its number
accuracy, asr, estimate        numbers or None
belief      for each client that is shown, 0 to 1000, None if it did not take part; None if the rule judges nobody
weight      the same for the weight, relative to the largest; only where weights tell more than honesty
attacked, accused              indices of clients; accused is None if the rule never accuses
here        indices of the clients that took part; left out if all of them did
false, missed                  how many clients were accused wrongly, and how many attackers were not accused
excluded    index -> why the client was excluded
why         index -> why the client was accused, where the rule says so
note        how the round ended, if it needs attention
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from honestly.runs.clean import fields, flat, number, text, whole_number
from honestly.runs.reader import join, read_record
from honestly.runs.record import RoundRecord
from honestly.show.live.model import Detail
from honestly.show.maps import SHORTENED

MOST_CLIENTS = 256  # a heatmap with more rows is unreadable: a sample of the clients is sent
MOST_ROUNDS = 5000


def detail(raw: Sequence[Any], experiment: Any) -> Detail:
    """One run in detail; never raises, whatever the records hold.

    >>> found = detail([{"round": 1, "accuracy": 0.5, "honesty": [1.0, 0.25], "attacked": [1]}], {"clients": 2})
    >>> found.rounds[0]["belief"], found.rounds[0]["attacked"], found.belief
    ([1000, 250], [1], 'honesty')
    """
    records, roster = join([read_record(value)[0] for value in raw[-MOST_ROUNDS:]])
    named = any(record.clients is not None for record in records)
    clients = len(roster) if named else whole_number(fields(experiment).get("clients"), most=10**6) or len(roster)
    visible = _sample(clients)
    honesty = any(record.honesty for record in records)
    judged = honesty or any(record.weights for record in records)
    weights = honesty and any(_has_shortened(record) for record in records)
    return Detail(
        clients=clients,
        shown=visible,
        names=tuple(text(roster[k], 100) for k in visible) if named else None,
        belief=("honesty" if honesty else "weight") if judged else None,
        weights=weights,
        truth=not named,
        settings=flat(experiment),
        rounds=tuple(_round(record, t, honesty, weights, visible) for t, record in enumerate(records)),
    )


def _sample(clients: int) -> tuple[int, ...]:
    """All clients, or an evenly spaced sample: simulated attackers have the highest indices."""
    if clients <= MOST_CLIENTS:
        return tuple(range(clients))
    return tuple(round(i * (clients - 1) / (MOST_CLIENTS - 1)) for i in range(MOST_CLIENTS))


def _round(record: RoundRecord, t: int, honesty: bool, weights: bool, sample: Sequence[int]) -> dict[str, Any]:
    visible = set(sample)

    def clients(indices: Sequence[int]) -> list[int]:
        return sorted(visible.intersection(indices))

    names = record.clients
    slim: dict[str, Any] = {
        "round": record.round or t + 1,
        "accuracy": number(record.accuracy),
        "asr": number(record.asr),
        "estimate": number(record.malicious_estimate, 2),
        "belief": _belief(record.honesty, sample) if honesty else _belief(_relative(record.weights), sample),
        "attacked": clients(record.attacked),
        "accused": None if record.accused is None else clients(record.accused),
        "false": number(record.false_accusations, 2),
        "missed": number(record.misses, 2),
    }
    if weights:
        slim["weight"] = _belief(_relative(record.weights), sample)
    here = clients(record.participants or ())
    if here and len(here) < len(sample):
        slim["here"] = here

    def sentences(of: Sequence[int], by_name: Mapping[str, str]) -> dict[str, str]:
        return {str(k): text(by_name.get(str(k) if names is None else names[k])) for k in of}

    if excluded := clients(record.excluded):
        slim["excluded"] = sentences(excluded, record.reasons)
    if record.accusations and (why := sentences(clients(record.accused or ()), record.accusations)):
        slim["why"] = why
    if record.kept or record.attention or record.refused:
        slim["note"] = text(record.status)
    return slim


def _belief(values: Sequence[float | None] | None, clients: Sequence[int]) -> list[int | None] | None:
    if not values:
        return None
    sample = [values[k] if k < len(values) else None for k in clients]
    return [None if v is None else round(1000 * min(max(v, 0.0), 1.0)) for v in sample]


def _has_shortened(record: RoundRecord) -> bool:
    """Whether a client was believed and still had less than half of the largest weight."""
    pairs = zip(record.honesty or (), _relative(record.weights), strict=False)
    return any(p is not None and w is not None and p > SHORTENED > w for p, w in pairs)


def _relative(weights: Sequence[float | None] | None) -> list[float | None]:
    """Weights relative to the largest of the round."""
    largest = max((v for v in weights or () if v is not None), default=0.0) or 1.0
    return [None if v is None else v / largest for v in weights or ()]
