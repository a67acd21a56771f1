"""The standing of a rule: one line that summarises its trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: The most that one round counts in a mean. In a layer where honest clients agree kappa has no bound, and a single
#: round would decide the mean; the medians, which are not capped, stand beside the means.
CAP = 100.0


@dataclass(frozen=True)
class Trial:
    """One rule in one attacked round; ``attack`` is "none", a word, or "adaptive" with its goal.

    ``error`` says what was wrong with the rule's answer; the numbers then mean nothing. ``refused`` is True if the rule
    does not accept so few clients. ``stopped`` is True if the rule must not be asked again. ``seconds`` is processor
    time, None where it was not taken.
    """

    rule: str
    population: str
    clients: int
    malicious: int
    attack: str
    kappa: float = math.inf
    layer: float = math.inf
    accused: float | None = None
    missed: float | None = None
    seconds: float | None = None
    error: str = ""
    refused: bool = False
    stopped: bool = False


@dataclass(frozen=True)
class Standing:
    """How a rule did in a suite.

    Attributes:
        told: what it had to be told: "f", or "nothing".
        basis: what it was judged on: "inner products", or "stand-ins" for coordinates that a suite does not have.
        rounds: number of attacked and quiet rounds, not counting the queries of the search.
        mean, mean_layer: mean kappa over the fixed attacks, of the whole update and of its worst layer; a round counts
            `CAP` at most.
        median, median_layer: the medians of the same rounds.
        uncapped, uncapped_layer: the means without the cap.
        capped: rounds in % whose worst layer is above the cap.
        worst, worst_layer: the largest of these.
        adaptive, adaptive_layer: the worst case: of the fixed attacks and of what a search against the rule found, with
            ``tries`` lies in each round for each goal.
        quiet: mean kappa if nobody lies.
        accused_quiet, accused: honest clients turned against in %, if nobody lies and under the fixed attacks; None for
            coordinate-wise rules, which accuse nobody.
        missed: attackers not turned against in %.
        milliseconds: processor time of the decision: the best of several in each round, the median of the rounds.
            None for rules that need coordinates: stand-ins are not as many as there are in a model.
        failed: rounds without a usable answer (the means leave them out), and the first ``error``.
        refused: rounds with fewer clients than the rule accepts, left out.
    """

    rule: str
    told: str
    basis: str
    rounds: int
    mean: float | None
    mean_layer: float | None
    median: float | None
    median_layer: float | None
    uncapped: float | None
    uncapped_layer: float | None
    capped: float | None
    worst: float | None
    worst_layer: float | None
    adaptive: float | None
    adaptive_layer: float | None
    tries: int
    quiet: float | None
    accused_quiet: float | None
    accused: float | None
    missed: float | None
    milliseconds: float | None
    failed: int
    refused: int
    error: str

    def asdict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: None stands for a number without bound."""
        row = asdict(self)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def standing(
    spec: str, trials: Sequence[Trial], tries: int, told: str = "nothing", basis: str = "inner products"
) -> Standing:
    """The line of one rule."""
    counted = [trial for trial in trials if not trial.refused]
    fine = [trial for trial in counted if not trial.error]
    quiet = [trial for trial in fine if not trial.malicious]
    fixed = [trial for trial in fine if trial.malicious and not trial.attack.startswith("adaptive")]
    whole = [trial for trial in fine if trial.attack == "adaptive:whole"]
    layer = [trial for trial in fine if trial.attack == "adaptive:worst"]
    times = [trial.seconds for trial in fine if trial.seconds is not None]
    return Standing(
        rule=spec,
        told=told,
        basis=basis,
        rounds=len(counted),
        mean=_mean([min(trial.kappa, CAP) for trial in fixed]),
        mean_layer=_mean([min(trial.layer, CAP) for trial in fixed]),
        median=_median([trial.kappa for trial in fixed]),
        median_layer=_median([trial.layer for trial in fixed]),
        uncapped=_mean([trial.kappa for trial in fixed]),
        uncapped_layer=_mean([trial.layer for trial in fixed]),
        capped=_mean([100.0 * (trial.layer > CAP) for trial in fixed]),
        worst=max((trial.kappa for trial in fixed), default=None),
        worst_layer=max((trial.layer for trial in fixed), default=None),
        adaptive=max((trial.kappa for trial in (*fixed, *whole)), default=None),
        adaptive_layer=max((trial.layer for trial in (*fixed, *layer)), default=None),
        tries=tries,
        quiet=_mean([trial.kappa for trial in quiet]),
        accused_quiet=_mean([100 * trial.accused for trial in quiet if trial.accused is not None]),
        accused=_mean([100 * trial.accused for trial in fixed if trial.accused is not None]),
        missed=_mean([100 * trial.missed for trial in fixed if trial.missed is not None]),
        milliseconds=None if not times else 1e3 * float(np.median(times)),
        failed=len(counted) - len(fine),
        refused=len(trials) - len(counted),
        error=next((trial.error for trial in counted if trial.error), ""),
    )


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
