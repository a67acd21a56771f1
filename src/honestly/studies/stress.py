"""Run rules against attacks on updates, without training: seconds instead of hours.

`kappa = |aggregate - honest mean|^2 / honest variance`, where the variance is the mean squared distance of honest
clients to their mean. At 0 the aggregate is the honest mean; at 1 it is as wrong as one honest client at random; a rule
without a bound on kappa is broken. All rules share one Gram matrix per attacked round, so thousands of cases take
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from honestly.own import is_own
from honestly.result import Float
from honestly.rules.rule import TooFewClientsError
from honestly.sim.attacks import ATTACKS, DataAttack, UpdateAttack, View
from honestly.sim.attacks.adaptive import Adaptive
from honestly.studies.attacked import AttackedRound, Case
from honestly.studies.layers.forge import FORMS, LAYERED, check
from honestly.studies.layers.round import LayeredRound
from honestly.studies.layers.space import LayeredPopulation
from honestly.studies.parallel import map_units
from honestly.studies.populations import KINDS, RECORDED, Population, PopulationSource, sources
from honestly.studies.specs import Contestant, attack_of, words

ADAPTIVE = "adaptive"

#: The fixed attacks: every attack on updates at several strengths. Data attacks run where their updates were recorded,
#: attacks on single layers where layers are known.
SUITE = (
    *("sign_flip:gamma=1", "sign_flip:gamma=2", "sign_flip"),
    *("random", "random_colluding", "gaussian:scale=1", "gaussian", "gaussian:scale=10"),
    *("alie", "alie:z=0.5", "alie:z=1", "alie:z=1.5"),
    *("ipm:epsilon=0.1", "ipm", "ipm:epsilon=1", "ipm:epsilon=2"),
    *("min_max", "min_max:direction=unit", "min_max:direction=sign", "min_sum", "min_sum:direction=unit"),
    *("fang_krum", "fang_trimmed_mean", "mimic", "mimic:target=0", "mpaf", "rop", "rop:angle=180"),
    *("near_duplicates:jitter=0:distance=0.5", "near_duplicates:jitter=0", "near_duplicates:jitter=0:distance=2"),
    *("near_duplicates:jitter=0.1", "near_duplicates:jitter=0.25", "near_duplicates", "near_duplicates:jitter=1"),
    *("near_duplicates:jitter=0.5:distance=2", "near_duplicates:towards=against", "near_duplicates:distance=1000"),
    *("near_duplicates:distance=0:jitter=1.5", "near_duplicates:distance=0:jitter=3"),
    *("scaling", "scaling:gamma=1e6", "free_rider", "free_rider:noise=0.1", "nan", "inf"),
    *("label_flip", "backdoor", "dba", "edge_case", "model_replacement"),
    *LAYERED,
)
# Attacks that are not named above take part with their defaults, but those that search against each rule.
SUITE += tuple(
    name
    for name, kind in ATTACKS.items()
    if name not in {"none", *(words(spec)[0] for spec in SUITE)} and kind.knows != "rule"
)

#: The rules that `honestly stress` compares by default.
CORE = (
    *("bayesian", "bayesian:variant=paper", "geometric_median", "median", "centered_clipping", "mean"),
    *("trimmed_mean", "multi_krum", "minimum_variance", "nnm+trimmed_mean", "nnm+geometric_median"),
)


@dataclass(frozen=True, kw_only=True)
class StressStudy:
    """What to run.

    Attributes:
        rules: words such as "bayesian", "nnm+median", "multi_krum:f=4".
        attacks: words such as "alie:z=1.5"; "adaptive", and any other that knows the rule, searches against each rule.
        populations: synthetic kinds, recordings of the package, files or folders.
        clients: numbers of clients K.
        malicious: numbers of attackers, or their share of K if between 0 and 1; those of half or more are left out.
        believed: what the rules that need f are told: None for the true number.
        seeds: of the synthetic populations and of the attacks.
    """

    rules: Sequence[str] = CORE
    attacks: Sequence[str] = (*SUITE, ADAPTIVE)
    populations: Sequence[str] = (*KINDS, *RECORDED)
    clients: Sequence[int] = (20,)
    malicious: Sequence[float] = (0, 1, 4, 8, 9)
    believed: Sequence[int | None] = (None,)
    seeds: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        """Fail now rather than in the middle of the study."""
        for spec in self.attacks:
            check(spec)
        for spec in self.rules:
            _ = Contestant(spec).parts
        for K in self.clients:
            if K < 3:
                raise ValueError(f"clients = {K}: must be at least 3, so one attacker is a minority")
        for M in self.malicious:
            if not 0 <= M < float("inf") or (M >= 1 and int(M) != M):  # also refuses NaN
                raise ValueError(f"malicious = {M}: a number of clients, or a share between 0 and 1")
        for f in self.believed:
            if f is not None and f < 0:
                raise ValueError(f"believed f = {f}: must be at least 0")
        if not self.seeds:
            raise ValueError("seeds: give at least one")
        for seed in self.seeds:
            if seed < 0:
                raise ValueError(f"seeds = {seed}: must be at least 0")
        if not self.tasks():
            raise ValueError(
                f"malicious = {list(self.malicious)}: none is a minority of {list(self.clients)} clients, or no "
                "population has so many"
            )

    def tasks(self) -> list[StressTask]:
        """The attacked populations, each a unit of work."""
        tasks: list[StressTask] = []
        for source in sources(self.populations, seeds=self.seeds):
            for K in self.clients:
                if source.clients is not None and source.clients < K:
                    continue  # populations of the package are skipped where more clients are requested
                counts = sorted({int(M) if M >= 1 else round(M * K) for M in self.malicious})
                tasks += [StressTask(self, source, K, M) for M in counts if 2 * M < K]
        return tasks


@dataclass(frozen=True)
class StressTask:
    """One population with M of K clients malicious: all attacks and all rules."""

    study: StressStudy
    source: PopulationSource
    clients: int
    malicious: int

    def run(self) -> list[Case]:
        """Every case."""
        population = self.source.open(self.clients)
        searching = [spec for spec in self.study.attacks if searches(spec, own=True)]
        fixed = [spec for spec in self.study.attacks if spec not in searching]
        if isinstance(population, LayeredPopulation):
            adaptive = [spec for spec in searching if words(spec)[0] == ADAPTIVE]  # the others need coordinates
            return self._layered_cases(population, fixed, adaptive)
        H = self.clients - self.malicious
        honest = population.honest[:H]
        cases: list[Case] = []
        if self.malicious == 0:
            return self._cases(population, "none", lambda _: AttackedRound(honest, honest[:0], population.root))
        for spec in fixed:
            forged, _ = self._forge(population, spec, None, 0)
            if forged is not None:
                attacked = AttackedRound(honest, forged, population.root)
                cases += self._cases(population, spec, lambda _, attacked=attacked: attacked)
        for spec in searching:

            def against(entry: tuple[Contestant, int], spec: str = spec) -> AttackedRound:
                forged, tries = self._forge(population, spec, *entry)
                assert forged is not None
                return AttackedRound(honest, forged, population.root, tries)

            cases += self._cases(population, spec, against)
        return cases

    def _layered_cases(
        self, population: LayeredPopulation, fixed: Sequence[str], searching: Sequence[str]
    ) -> list[Case]:
        """Every case of a population that is known by layer."""
        attacked = LayeredRound.of(population, self.malicious, self.source.seed)
        if self.malicious == 0:
            return self._cases(population, "none", lambda _: attacked)
        cases: list[Case] = []
        for spec in fixed:
            forged = attacked.under_attack(spec)
            if forged is not None:
                cases += self._cases(population, spec, lambda _, forged=forged: forged)
        for spec in searching:
            for goal in ("whole", "worst"):
                word = spec if goal == "whole" else f"{spec}:goal=layer"
                cases += self._cases(
                    population, word, lambda entry, goal=goal: attacked.under_search(*entry, goal=goal)
                )
        return cases

    def _entries(self) -> Iterator[tuple[Contestant, int, bool]]:
        """Every rule with the f that it is told; a rule that needs none runs once."""
        for spec in self.study.rules:
            contestant = Contestant(spec)
            for believed in self.study.believed if contestant.needs_f else (None,):
                yield contestant, self.malicious if believed is None else believed, believed is not None

    def _cases(
        self,
        population: Population | LayeredPopulation,
        attack: str,
        attacked: Callable[[tuple[Contestant, int]], AttackedRound | LayeredRound],
    ) -> list[Case]:
        layered = isinstance(population, LayeredPopulation)
        cases: list[Case] = []
        for contestant, f, guessed in self._entries():
            if layered and not contestant.on_gram:
                continue
            try:
                scores = attacked((contestant, f)).score(contestant, f)
            except ValueError as error:  # the rule does not accept so few clients for any f
                root = None if isinstance(population, LayeredPopulation) else population.root
                mistake = contestant.is_own and not isinstance(error, TooFewClientsError)
                if mistake and contestant.accepts(K=self.clients, f=f, root=root):
                    raise
                continue
            cases.append(
                Case(
                    population=population.name,
                    recorded=population.recorded,
                    seed=self.source.seed,
                    clients=self.clients,
                    malicious=self.malicious,
                    attack=attack,
                    rule=contestant.spec,
                    guessed=guessed,
                    **scores,
                )
            )
        return cases

    def _forge(
        self, population: Population, spec: str, contestant: Contestant | None, f: int
    ) -> tuple[Float | None, int | None]:
        """(M, d) what the attackers send, None for a data attack whose updates were not recorded; and their tries."""
        name, _ = words(spec)
        if name not in ATTACKS and not is_own(name):  # an attack on single layers
            return None, None
        if issubclass(ATTACKS.find(name, own=True), DataAttack):
            rows = population.poisoned.get(name)
            return None if rows is None or len(rows) < self.malicious else rows[len(rows) - self.malicious :], None
        attack = attack_of(spec)
        assert isinstance(attack, UpdateAttack)
        H = self.clients - self.malicious
        pipeline = None
        if contestant is not None:
            pipeline, _ = contestant.build(K=self.clients, f=f, root=population.root)
        view = View(
            own=population.honest[H:],
            others=population.honest[:H] if attack.knows in ("all", "rule") else None,
            rng=np.random.default_rng([self.source.seed, self.malicious, *spec.encode()]),
            clients=self.clients,
            pipeline=pipeline,
        )
        with np.errstate(over="ignore"):
            return attack.craft_and_count(view) if isinstance(attack, Adaptive) else (attack.forge(view), None)


def searches(spec: str, *, own: bool = False) -> bool:
    """Whether an attack on updates knows the rule, so its lie is another one for each rule.

    With ``own``, the word may also name a class of the user's, whose code is run.
    """
    name, _ = words(spec)
    if name not in ATTACKS and not (own and is_own(name)):
        return False
    kind = ATTACKS.find(name, own=own)
    return kind.knows == "rule" and not issubclass(kind, DataAttack)


def missing_attacks(study: StressStudy, cases: Sequence[Case]) -> dict[str, str]:
    """The attacks of the study that none of its populations can show, each with what it needs."""
    seen = {words(case.attack)[0] for case in cases}
    tasks = [task for task in study.tasks() if task.malicious]
    lacking = [spec for spec in study.attacks if words(spec)[0] not in {*seen, ADAPTIVE}] if tasks else []
    opened = [task.source.open(task.clients) for task in tasks] if lacking else []
    missing: dict[str, str] = {}
    for spec in lacking:
        name, _ = words(spec)
        by_layer = name not in ATTACKS and not is_own(name)
        on_data = not by_layer and issubclass(ATTACKS.find(name, own=True), DataAttack)
        if on_data and not any(name in population.poisoned for population in opened):
            missing[spec] = (
                "needs updates that were trained on poisoned data: record a population with "
                f"`honestly stress --record OUT.npz attack={name}`, and pass the file to --populations"
            )
        elif by_layer and not any(isinstance(population, LayeredPopulation) for population in opened):
            missing[spec] = "needs a population by layer, such as digits"
        elif name not in FORMS and not on_data and all(isinstance(one, LayeredPopulation) for one in opened):
            missing[spec] = "needs whole updates, and a population by layer has inner products alone"
    return missing


def run(study: StressStudy, *, jobs: int = 1, progress: Callable[[int, int], None] | None = None) -> list[Case]:
    """Run all cases of the study; order and numbers do not depend on the number of jobs.

    >>> study = StressStudy(rules=["mean"], attacks=["sign_flip"], populations=["isotropic"], malicious=[4])
    >>> [(case.rule, case.attack, case.kappa > 0.5) for case in run(study)]
    [('mean', 'sign_flip', True)]
    """
    tasks = study.tasks()
    cases: list[Case] = []
    for done, unit in enumerate(map_units(StressTask.run, tasks, jobs), start=1):
        cases += unit
        if progress is not None:
            progress(done, len(tasks))
    return cases
