"""Judge rules by a suite: all attacks in all rounds, the worst lie that a search finds, and one line per rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from honestly.engine import Pipeline
from honestly.result import Float
from honestly.rules.rule import GramGeometry, TooFewClientsError
from honestly.studies.layers.forge import forge
from honestly.studies.layers.measure import Score, geometry_of, measure
from honestly.studies.layers.search import Attacker, Goal
from honestly.studies.layers.space import LayeredPopulation, Space
from honestly.studies.layers.stand_ins import StandIns
from honestly.studies.parallel import map_units
from honestly.studies.recordings import Course
from honestly.studies.suites.own import Judged, contestant, guard, looks_at_coordinates
from honestly.studies.suites.sandbox import LIMIT, RemoteContestant, RuleError, RuleStoppedError, close
from honestly.studies.suites.spec import Suite, open_courses
from honestly.studies.suites.standings import Standing, Trial, standing

GOALS: tuple[Goal, ...] = ("whole", "worst")
#: How often a rule is asked for its time; the fastest counts.
REPEATS = 5


@dataclass(frozen=True)
class Unit:
    """One recorded round with M attackers: all rules, all attacks."""

    suite: Suite
    course: Course
    round: int
    malicious: int
    rules: tuple[str, ...]
    seed: int
    limit: float = LIMIT

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
        stand_ins: StandIns | None = None
        trials: list[Trial] = []
        for spec in self.rules:
            judged = contestant(spec, self.limit)
            used = None
            if looks_at_coordinates(judged):
                if stand_ins is None:
                    stand_ins = StandIns.of(space, np.random.default_rng([self.seed, M, 1, *population.name.encode()]))
                used = stand_ins
            trials += self._trials(judged, space, population, sent, used)
        return trials

    def _trials(
        self,
        judged: Judged,
        space: Space,
        population: LayeredPopulation,
        sent: dict[str, Float],
        stand_ins: StandIns | None,
    ) -> Iterator[Trial]:
        """All trials of one rule, until it has to be stopped."""
        asks: dict[str, Callable[[Pipeline], Score]] = {
            attack: partial(measure, space, rows, stand_ins=stand_ins) for attack, rows in sent.items()
        }
        if space.M:
            asks |= {f"adaptive:{goal}": partial(self._worst, space, goal, stand_ins) for goal in GOALS}
        for number, (attack, ask) in enumerate(asks.items()):
            trial = self._trial(judged, space, population, attack, ask)
            if number == 0 and stand_ins is None and not trial.error and not trial.refused:
                trial = replace(trial, seconds=self._seconds(judged, space, sent[attack]))
            yield trial
            if trial.stopped:
                close(judged.spec)
                return

    def _worst(self, space: Space, goal: Goal, stand_ins: StandIns | None, pipeline: Pipeline) -> Score:
        """The score of the worst lie that a search against the rule finds."""
        rng = np.random.default_rng([self.seed, self.malicious, *goal.encode(), *self.course.name.encode()])
        return Attacker(space, pipeline, goal, self.suite.tries, stand_ins).search(rng).score

    def _trial(
        self,
        judged: Judged,
        space: Space,
        population: LayeredPopulation,
        attack: str,
        ask: Callable[[Pipeline], Score],
    ) -> Trial:
        K, M = space.H + space.M, space.M
        known = (judged.spec, population.name, K, M, attack)
        rng = np.random.default_rng([self.seed, K, M, *attack.encode(), *population.name.encode()])
        try:
            pipeline, _ = judged.build(K=K, f=M, root=None)
        except ValueError:
            return Trial(*known, refused=True)
        except RuleError as error:
            return Trial(*known, error=str(error), stopped=isinstance(error, RuleStoppedError))
        try:
            score = ask(guard(pipeline, rng))
        except TooFewClientsError:  # mixers left too few
            return Trial(*known, refused=True)
        except (RuleError, ValueError) as error:
            return Trial(*known, error=str(error), stopped=isinstance(error, RuleStoppedError))
        judges = score.accused is not None
        return Trial(
            *known,
            kappa=score.kappa,
            layer=score.worst_layer,
            accused=score.false / space.H if judges else None,
            missed=(score.missed / M if M else 0.0) if judges else None,
        )

    def _seconds(self, judged: Judged, space: Space, rows: Float) -> float | None:
        """Processor time of the decision, the fastest of several, so a busy machine matters little."""
        known: dict[str, Any] = {"K": space.H + space.M, "f": space.M, "root": None}
        squared = space.products[:, space.n, space.n]

        def geometry() -> GramGeometry:
            return geometry_of(space.grams(rows), space.towards_mean(rows), squared, space.sizes)

        try:
            if isinstance(judged, RemoteContestant):  # it says how long it took in its own process
                pipeline, _ = judged.build(**known, repeats=REPEATS)
                return _seconds_of(pipeline, geometry(), judged.clock)
            pipeline, _ = judged.build(**known)
            return min(_seconds_of(pipeline, geometry(), time.process_time) for _ in range(REPEATS))
        except (RuleError, ValueError):
            return None


def _seconds_of(pipeline: Pipeline, geometry: GramGeometry, clock: Callable[[], float]) -> float:
    start = clock()
    pipeline.decide(geometry)
    return clock() - start


def units(
    suite: Suite, rules: Sequence[str], *, seed: int = 0, folder: Path | None = None, limit: float = LIMIT
) -> list[Unit]:
    """All units of work: one per recorded round and number of attackers."""
    return [
        Unit(suite, course, number, M, tuple(rules), seed, limit)
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
    limit: float = LIMIT,
    progress: Callable[[int, int], None] | None = None,
) -> list[Standing]:
    """Where each rule stands, in the order given. Words, or classes in files: `file.py:Rule`.

    Args:
        suite: the suite.
        rules: the rules to judge.
        seed: seed of the attacks' noise and of the clients' order.
        jobs: number of processes.
        folder: where the data sets and suites are.
        limit: seconds for one answer of a rule in a file; one that takes longer is stopped and not asked again.
        progress: called with the units done and their number.
    """
    facts = {spec: _facts(spec, limit) for spec in rules}  # fail now rather than in the middle
    work = units(suite, rules, seed=seed, folder=folder, limit=limit)
    trials: list[Trial] = []
    stopped: set[str] = set()

    def left() -> Iterator[Unit]:
        for unit in work:
            yield replace(unit, rules=tuple(spec for spec in unit.rules if spec not in stopped))

    try:
        for done, part in enumerate(map_units(Unit.run, left(), jobs), start=1):
            trials += part
            stopped |= {trial.rule for trial in part if trial.stopped}
            if progress is not None:
                progress(done, len(work))
    finally:
        for spec in rules:
            close(spec)
    return [
        standing(spec, [trial for trial in trials if trial.rule == spec], suite.tries, *facts[spec]) for spec in rules
    ]


def _facts(spec: str, limit: float) -> tuple[str, str]:
    """What the rule is told, and what it is judged on."""
    judged = contestant(spec, limit)
    return judged.knows, "stand-ins" if looks_at_coordinates(judged) else "inner products"
