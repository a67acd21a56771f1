"""How well a rule separates honest from malicious clients: ROC, calibration, accusations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from honestly.result import Float
from honestly.runs.reader import Rounds
from honestly.runs.record import RoundRecord
from honestly.show.chart import Chart, Line
from honestly.show.maps import attack_grid, belief_grid
from honestly.studies.scores import Bin, calibration_error, reliability

MOST_POINTS = 120


class Half(NamedTuple):
    """Accusations of honest clients and missed attackers in a part of a run's rounds."""

    false: int
    missed: int
    rounds: int


@dataclass(frozen=True)
class Statements:
    """What a rule said of each client in each round, and the truth.

    Attributes:
        score: honesty, or the weight relative to the round's largest.
        honest: True where the client did not attack in that round.
        probability: True if the score is a probability.
        halves: the accusations in the first and in the second half of the rounds.
    """

    score: Float
    honest: Float
    probability: bool
    halves: tuple[Half, Half]

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return sum(half.rounds for half in self.halves)


def statements(rounds: Rounds) -> Statements | None:
    """The statements of a run; None if its rule says nothing of clients."""
    K = len(rounds.clients)
    belief = belief_grid(rounds.records, K)
    if belief is None:
        return None
    grid, label = belief
    attacked = attack_grid(rounds.records, K)
    known = np.isfinite(grid) & np.isfinite(attacked)
    middle = len(rounds.records) // 2
    return Statements(
        grid[known],
        1.0 - attacked[known],
        label == "honesty",
        (_half(rounds.records[:middle]), _half(rounds.records[middle:])),
    )


def _half(records: Sequence[RoundRecord]) -> Half:
    false = sum(r.false_accusations or 0 for r in records)
    return Half(false, sum(r.misses or 0 for r in records), len(records))


@dataclass(frozen=True)
class Quality:
    """Detection over all rounds of some runs: areas and errors are None where they are not defined.

    Attributes:
        auc: probability that an honest client has a higher score than an attacker (ties count half).
        brier: mean squared error of the honesty as a probability; 0.25 is a coin's.
        calibration: expected calibration error.
        false, missed: accusations of honest clients and missed attackers, a round.
        statements: how many clients were judged, over all rounds.
        roc: false alarms and hits, as the demand on honesty rises.
        bins: the reliability diagram; empty unless the scores are probabilities.
    """

    auc: float | None
    brier: float | None
    calibration: float | None
    false: float
    missed: float
    statements: int
    roc: tuple[list[float], list[float]]
    bins: list[Bin]


def quality(parts: Sequence[Statements]) -> Quality | None:
    """Detection quality of several runs together; None without any."""
    parts = [part for part in parts if len(part.score)]
    if not parts:
        return None
    score = np.concatenate([part.score for part in parts])
    honest = np.concatenate([part.honest for part in parts])
    rounds = sum(part.rounds for part in parts)
    curve = roc(score, honest)
    probability = all(part.probability for part in parts)
    bins = reliability(score, honest.astype(bool)) if probability else []  # type: ignore[arg-type]
    return Quality(
        auc=None if not curve[0] else float(np.trapezoid(curve[1], curve[0])),
        brier=float(np.mean((score - honest) ** 2)) if probability else None,
        calibration=calibration_error(bins) if probability else None,
        false=sum(half.false for part in parts for half in part.halves) / rounds,
        missed=sum(half.missed for part in parts for half in part.halves) / rounds,
        statements=len(score),
        roc=curve,
        bins=bins,
    )


def roc(score: Float, honest: Float) -> tuple[list[float], list[float]]:
    """False alarms and hits when everybody at or below a score is accused, for every score; empty without both kinds.

    >>> roc(np.array([0.1, 0.9]), np.array([0.0, 1.0]))
    ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    """
    innocents, liars = float(honest.sum()), float((1 - honest).sum())
    if not innocents or not liars:
        return [], []
    values, where = np.unique(score, return_inverse=True)
    alarms = np.cumsum(np.bincount(where, weights=honest, minlength=len(values))) / innocents
    hits = np.cumsum(np.bincount(where, weights=1 - honest, minlength=len(values))) / liars
    return [0.0, *alarms.tolist()], [0.0, *hits.tolist()]


def _thin(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """A curve in as many points as an eye can tell apart: neighbours closer than a step are left out."""
    chosen = [0]
    for i in range(1, len(xs)):
        far = abs(xs[i] - xs[chosen[-1]]) + abs(ys[i] - ys[chosen[-1]]) >= 1 / MOST_POINTS
        if far or i == len(xs) - 1:
            chosen.append(i)
    return [xs[i] for i in chosen], [ys[i] for i in chosen]


def roc_chart(qualities: dict[str, Quality]) -> Chart:
    """The ROC curves of the rules, each with its area."""
    lines = [
        Line(f"{rule} (AUC {q.auc:.3f})", *_thin(*q.roc), number=i)
        for i, (rule, q) in enumerate(qualities.items())
        if q.auc is not None
    ]
    return Chart("ROC: attackers accused against honest clients accused", "honest clients accused (share)",
                 "attackers accused (share)", lines, diagonal=True)  # fmt: skip


def reliability_chart(qualities: dict[str, Quality]) -> Chart:
    """Stated honesty against the share that was honest; a dot grows with the share of the statements."""
    lines = [
        Line(
            rule if q.brier is None else f"{rule} (Brier {q.brier:.3f})", [b.stated for b in q.bins],
            [b.true for b in q.bins], shares=[b.count / q.statements for b in q.bins], number=i,
        )
        for i, (rule, q) in enumerate(qualities.items())
        if q.bins
    ]  # fmt: skip
    return Chart("Reliability of the honesty probabilities", "stated probability of being honest",
                 "share that was honest", lines, dots=True, diagonal=True)  # fmt: skip
