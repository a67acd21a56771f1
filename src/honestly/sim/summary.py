"""A run in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

LAST = 20  # the paper's ablation averages the last 20 rounds


def summary(records: Sequence[dict[str, Any]]) -> dict[str, float | int | None]:
    """Final numbers, and means over the last 20 rounds (over all, if there are fewer).

    >>> summary([{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}])["accuracy_last"]
    0.75
    """

    def values(key: str, part: Sequence[dict[str, Any]]) -> list[float]:
        return [r[key] for r in part if r.get(key) is not None]

    def mean(key: str, part: Sequence[dict[str, Any]]) -> float | None:
        found = values(key, part)
        return fmean(found) if found else None

    def last(key: str) -> float | None:
        found = values(key, records)
        return found[-1] if found else None

    tail = records[-LAST:]
    return {
        "rounds": len(records),
        "accuracy_last": last("accuracy"),
        "accuracy_mean_last_20": mean("accuracy", tail),
        "asr_last": last("asr"),
        "asr_mean_last_20": mean("asr", tail),
        "false_accusations_per_round": mean("false_accusations", records),
        "misses_per_round": mean("misses", records),
        "refused_rounds": sum(str(r.get("status", "")).startswith("refused") for r in records),
    }
