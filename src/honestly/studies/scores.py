"""Scores: detection in one round, and calibration of probabilities over many rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from honestly.result import Float


def detection_auc(score: Float, malicious: Sequence[bool]) -> float | None:
    """Probability that an honest client has a higher score than a malicious one (ties count half); None without either.

    >>> detection_auc(np.array([0.9, 0.8, 0.1]), [False, False, True])
    1.0
    """
    liar = np.asarray(malicious, dtype=bool)
    if liar.all() or not liar.any():
        return None
    gaps = score[~liar][:, None] - score[liar][None, :]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


@dataclass(frozen=True)
class Bin:
    """Clients with honesty in one interval: the mean statement, the share that was honest, and their number."""

    low: float
    high: float
    stated: float
    true: float
    count: int


def reliability(honesty: Sequence[float], honest: Sequence[bool], bins: int = 10) -> list[Bin]:
    """The reliability curve: in each interval of stated honesty, the mean statement and the share that was honest.

    >>> [(b.stated, b.true, b.count) for b in reliability([0.0, 1.0, 1.0, 1.0], [False, True, True, False], bins=2)]
    [(0.0, 0.0, 1), (1.0, 0.6666666666666666, 3)]
    """
    stated, true = np.asarray(honesty, dtype=np.float64), np.asarray(honest, dtype=np.float64)
    index = np.minimum((stated * bins).astype(int), bins - 1)
    curve: list[Bin] = []
    for b in range(bins):
        inside = index == b
        if inside.any():
            n = int(inside.sum())
            curve.append(Bin(b / bins, (b + 1) / bins, float(stated[inside].mean()), float(true[inside].mean()), n))
    return curve


def calibration_error(curve: Sequence[Bin]) -> float | None:
    """Expected calibration error: the mean gap between statement and truth, weighted by the number of clients."""
    total = sum(b.count for b in curve)
    return sum(b.count * abs(b.stated - b.true) for b in curve) / total if total else None
