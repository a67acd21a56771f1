"""Judge rules by a suite: every attack in every round, the worst lie that a search finds, one line for each rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from honestly.rules.rule import Mixer, Rule
from honestly.studies.layers.forge import forge
from honestly.studies.layers.measure import Score, measure
from honestly.studies.layers.search import Attacker, Goal
from honestly.studies.layers.space import LayeredPopulation, Space
from honestly.studies.parallel import map_units
from honestly.studies.recordings import Course
from honestly.studies.specs import Contestant
from honestly.studies.suites.own import GuardedRule, RuleError, contestant
from honestly.studies.suites.spec import Suite, open_courses

GOALS: tuple[Goal, ...] = ("whole", "worst")
#: The most that one round counts in a mean: layers in which honest clients agree have no bound, and one of them would
#: decide all.
CAP = 100.0


@dataclass(frozen=True)
class Trial:
    """One rule in one attacked round; ``attack`` is "none", a word, or "adaptive" with its goal.

    ``error`` says what was wrong with the rule's answer; the numbers then mean nothing. ``refused`` is True if the rule
    does not accept so few clients.
    """

    rule: str
    population: str
    clients: int
    malicious: int
    attack: str
    kappa: float = math.inf
    layer: float = math.inf
    accused: float = 0.0
    missed: float = 0.0
    seconds: float = 0.0
    error: str = ""
    refused: bool = False


@dataclass(frozen=True)
class Standing:
    """How a rule did in a suite.

    Attributes:
        told: what it had to be told: "f", or "nothing".
        rounds: attacked and quiet rounds in which it was asked, the search's own questions not counted.
        mean, mean_layer: mean kappa over the fixed attacks, of the whole update and of its worst layer; a round counts
            `CAP` at most.
        worst, worst_layer: the largest of these.
        adaptive, adaptive_layer: the worst case: of the fixed attacks and of what a search against the rule found, with
            ``tries`` lies in each round for each goal.
        quiet: mean kappa if nobody lies.
        accused_quiet, accused: honest clients turned against in %, if nobody lies and under the fixed attacks.
        missed: attackers not turned against in %.
        milliseconds: median time of the rule itself.
        failed: rounds without a usable answer (the means leave them out), and the first ``error``.
        refused: rounds with fewer clients than the rule accepts, left out.
    """

    rule: str
    told: str
    rounds: int
    mean: float | None
    mean_layer: float | None
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


@dataclass(frozen=True)
class Unit:
    """One recorded round with M attackers: all rules, all attacks."""

    suite: Suite
    course: Course
    round: int
    malicious: int
    rules: tuple[str, ...]
    seed: int

    def run(self) -> list[Trial]:
        """Every trial."""
        population = LayeredPopulation.of(self.course, self.round)
        M = self.malicious
        space = Space.of(population, M, np.random.default_rng([self.seed, M, *population.name.encode()]))
        if M == 0:
            sent = {"none": np.zeros((0, space.b))}
        else:
            forged = {
                spec: forge(space, spec, np.random.default_rng([self.seed, M, *spec.encode()]))
                for spec in self.suite.attacks
            }
            sent = {spec: rows for spec, rows in forged.items() if rows is not None}
        found: list[Trial] = []
        for spec in self.rules:
            judged = contestant(spec)
            for attack, rows in sent.items():
                ask = partial(measure, space, rows)
                found.append(self._trial(judged, space, population, attack, ask))
            for goal in GOALS if M else ():
                found.append(
                    self._trial(judged, space, population, f"adaptive:{goal}", partial(self._worst, space, goal))
                )
        return found

    def _worst(self, space: Space, goal: Goal, rule: Rule, pre: Sequence[Mixer]) -> Score:
        """The score of the worst lie that a search against the rule finds."""
        rng = np.random.default_rng([self.seed, self.malicious, *goal.encode(), *self.course.name.encode()])
        return Attacker(space, rule, goal, self.suite.tries, pre).search(rng).score

    def _trial(
        self,
        judged: Contestant,
        space: Space,
        population: LayeredPopulation,
        attack: str,
        ask: Callable[[Rule, Sequence[Mixer]], Score],
    ) -> Trial:
        K, M = space.H + space.M, space.M
        known = (judged.spec, population.name, K, M, attack)
        try:
            pre, rule, _ = judged.build(K=K, f=M, root=None)
        except ValueError:
            return Trial(*known, refused=True)
        rng = np.random.default_rng([self.seed, K, M, *attack.encode(), *population.name.encode()])
        try:
            score = ask(GuardedRule(inner=rule, rng=rng), pre)
        except RuleError as error:
            return Trial(*known, error=str(error))
        return Trial(
            *known,
            kappa=score.kappa,
            layer=score.worst_layer,
            accused=score.false / space.H,
            missed=score.missed / M if M else 0.0,
            seconds=score.seconds,
        )


def units(suite: Suite, rules: Sequence[str], *, seed: int = 0, folder: Path | None = None) -> list[Unit]:
    """The work: one unit for each recorded round and number of attackers."""
    return [
        Unit(suite, course, number, M, tuple(rules), seed)
        for course in open_courses(suite, folder)
        for number in course.rounds
        for M in suite.counts(course.clients)
    ]


def judge(
    suite: Suite,
    rules: Sequence[str],
    *,
    seed: int = 0,
    jobs: int = 1,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Standing]:
    """Where each rule stands, in the order given. Words, or classes in files: `file.py:Rule`.

    Arguments:
        suite: what to judge by.
        rules: who is judged.
        seed: of the attacks' noise and of the clients' order.
        jobs: processes.
        folder: where the data sets and suites are.
        progress: called with the units done and their number.
    """
    for spec in rules:
        contestant(spec)  # fail now rather than in the middle
    work = units(suite, rules, seed=seed, folder=folder)
    trials: list[Trial] = []
    for done, found in enumerate(map_units(Unit.run, work, jobs), start=1):
        trials += found
        if progress is not None:
            progress(done, len(work))
    return [standing(spec, [trial for trial in trials if trial.rule == spec], suite.tries) for spec in rules]


def standing(spec: str, trials: Sequence[Trial], tries: int) -> Standing:
    """The line of one rule."""
    asked = [trial for trial in trials if not trial.refused]
    fine = [trial for trial in asked if not trial.error]
    quiet = [trial for trial in fine if not trial.malicious]
    fixed = [trial for trial in fine if trial.malicious and not trial.attack.startswith("adaptive")]
    whole = [trial for trial in fine if trial.attack == "adaptive:whole"]
    layer = [trial for trial in fine if trial.attack == "adaptive:worst"]
    return Standing(
        rule=spec,
        told=contestant(spec).knows,
        rounds=len(asked),
        mean=_mean([min(trial.kappa, CAP) for trial in fixed]),
        mean_layer=_mean([min(trial.layer, CAP) for trial in fixed]),
        worst=max((trial.kappa for trial in fixed), default=None),
        worst_layer=max((trial.layer for trial in fixed), default=None),
        adaptive=max((trial.kappa for trial in (*fixed, *whole)), default=None),
        adaptive_layer=max((trial.layer for trial in (*fixed, *layer)), default=None),
        tries=tries,
        quiet=_mean([trial.kappa for trial in quiet]),
        accused_quiet=_mean([100 * trial.accused for trial in quiet]),
        accused=_mean([100 * trial.accused for trial in fixed]),
        missed=_mean([100 * trial.missed for trial in fixed]),
        milliseconds=float(np.median([1e3 * trial.seconds for trial in fine])) if fine else None,
        failed=len(asked) - len(fine),
        refused=len(trials) - len(asked),
        error=next((trial.error for trial in asked if trial.error), ""),
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
