"""A run in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from honestly.runs.reader import read_record
from honestly.runs.record import RoundRecord

LAST = 20  # the paper's ablation averages the last 20 rounds


def summary(records: Sequence[RoundRecord | dict[str, Any]]) -> dict[str, float | int | None]:
    """Final numbers, and means over the last 20 rounds (over all, if there are fewer), of records or their JSON.

    >>> summary([{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}])["accuracy_last"]
    0.75
    """

    rounds = [r if isinstance(r, RoundRecord) else read_record(r)[0] for r in records]

    def last(values: Sequence[float | None]) -> float | None:
        return next((v for v in reversed(values) if v is not None), None)

    def mean(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return fmean(known) if known else None

    accuracy, asr = [r.accuracy for r in rounds], [r.asr for r in rounds]
    return {
        "rounds": len(rounds),
        "accuracy_last": last(accuracy),
        "accuracy_mean_last_20": mean(accuracy[-LAST:]),
        "asr_last": last(asr),
        "asr_mean_last_20": mean(asr[-LAST:]),
        "false_accusations_per_round": mean([r.false_accusations for r in rounds]),
        "misses_per_round": mean([r.misses for r in rounds]),
        "refused_rounds": sum(r.refused for r in rounds),
    }
