"""Rules against attacks on updates, without training: seconds instead of hours.

`kappa = |aggregate - honest mean|^2 / honest variance` (the mean squared distance of honest clients to their mean): 0
is the mean of the honest clients, 1 is as wrong as trusting one honest client at random, no bound is broken. One
Gram matrix of each attacked round is shared by all rules, so that thousands of cases take seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt

from honestly.bench.populations import KINDS, Population, Source, sources
from honestly.bench.scores import detection_auc
from honestly.bench.specs import Contestant, attack_of, words
from honestly.result import Float
from honestly.sim.attacks import ATTACKS, DataAttack, UpdateAttack, View
from honestly.sim.attacks.span import Span

ADAPTIVE = "adaptive"

#: The fixed attacks: every attack on updates, at several strengths; data attacks count where updates were recorded.
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
)

#: What `honestly stress` compares unless told otherwise.
CORE = (
    *("bayesian", "bayesian:variant=paper", "geometric_median", "median", "centered_clipping", "mean"),
    *("trimmed_mean", "multi_krum", "minimum_variance", "nnm+trimmed_mean", "nnm+geometric_median"),
)


@dataclass(frozen=True, kw_only=True)
class Study:
    """What to run.

    Attributes:
        rules: words such as "bayesian", "nnm+median", "multi_krum:f=4".
        attacks: words such as "alie:z=1.5"; "adaptive" is the one that searches against each rule.
        populations: synthetic kinds, files or folders.
        clients: numbers of clients K.
        malicious: numbers of attackers, or their share of K if between 0 and 1; those of half or more are left out.
        believed: what the rules that need f are told: None for the true number.
        seeds: of the synthetic populations and of the attacks.
    """

    rules: Sequence[str] = CORE
    attacks: Sequence[str] = (*SUITE, ADAPTIVE)
    populations: Sequence[str] = tuple(KINDS)
    clients: Sequence[int] = (20,)
    malicious: Sequence[float] = (0, 1, 4, 8, 9)
    believed: Sequence[int | None] = (None,)
    seeds: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        """Fail now rather than in the middle: every word must have a meaning."""
        for spec in self.attacks:
            attack_of(spec)
        for spec in self.rules:
            _ = Contestant(spec).parts
        for K in self.clients:
            if K < 3:
                raise ValueError(f"clients = {K}: must be at least 3, so that one attacker is a minority")
        for M in self.malicious:
            if M < 0 or (M >= 1 and int(M) != M):
                raise ValueError(f"malicious = {M}: a number of clients, or a share between 0 and 1")
        for f in self.believed:
            if f is not None and f < 0:
                raise ValueError(f"believed f = {f}: must be at least 0")
        if not self.seeds:
            raise ValueError("seeds: give at least one")
        if not self.tasks():
            raise ValueError(f"malicious = {list(self.malicious)}: none is a minority of {list(self.clients)} clients")

    def tasks(self) -> list[Task]:
        """The attacked populations: each is one unit of work."""
        found: list[Task] = []
        for source in sources(self.populations, seeds=self.seeds):
            for K in self.clients:
                counts = sorted({int(M) if M >= 1 else round(M * K) for M in self.malicious})
                found += [Task(self, source, K, M) for M in counts if 2 * M < K]
        return found


@dataclass(frozen=True)
class Case:
    """One rule in one attacked round.

    Attributes:
        attack: its word; "none" for no attacker.
        believed: the f that the rule was told; None for a rule that needs none.
        guessed: True if ``believed`` was given to the study, False if it is the true number (or the largest accepted).
        kappa: squared distance of the aggregate to the honest mean in honest variances.
        auc: probability that an honest client is believed more than a malicious one.
        accused: share of the honest clients that the rule turned against (honesty below 1/2; for a rule without
            honesty, a weight below a tenth of an equal share); None for coordinate-wise rules.
        missed: share of the malicious clients that it did not turn against.
        estimated: the number of malicious clients that it inferred.
        honesty: of each client, attackers last; None unless inferred.
        steps: iterations; ``seconds``: the rule's own time.
    """

    population: str
    recorded: bool
    seed: int
    clients: int
    malicious: int
    attack: str
    rule: str
    believed: int | None
    guessed: bool
    kappa: float
    auc: float | None
    accused: float | None
    missed: float | None
    estimated: float | None
    honesty: list[float] | None
    seconds: float

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Round:
    """The updates that a server got: honest clients first, attackers last."""

    honest: Float
    forged: Float
    root: Float

    @cached_property
    def usable(self) -> npt.NDArray[np.bool_]:
        """(K,) False for a client with NaN or Inf, which is refused before any rule sees it."""
        return np.all(np.isfinite(np.concatenate([self.honest, self.forged])), axis=1)

    @cached_property
    def mean(self) -> Float:
        """(d,) mean of the honest clients."""
        return self.honest.mean(axis=0)

    @cached_property
    def variance(self) -> float:
        """Mean squared distance of the honest clients to their mean."""
        return float(np.square(self.honest - self.mean).sum(axis=1).mean())

    @cached_property
    def span(self) -> Span:
        """The usable clients about the honest mean, the mean, and the root."""
        X = np.concatenate([self.honest, self.forged])[self.usable]
        basis = np.concatenate([X - self.mean, self.mean[None, :], (self.root - self.mean)[None, :]])
        n = len(X)
        return Span(basis @ basis.T, n, basis, self.mean, len(self.mean), n + 1)

    @cached_property
    def ranked(self) -> Float:
        """The sorted columns of all usable clients, shared by the coordinate-wise rules."""
        return self.span.ranked(np.eye(len(self.span.products) - 2, len(self.span.products)))

    def score(self, contestant: Contestant, f: int) -> dict[str, Any]:
        """How the rule did."""
        K, M = len(self.usable), len(self.forged)
        pre, rule, told = contestant.build(K=K, f=f, root=self.root)
        n = int(self.usable.sum())
        shared = None if pre or not hasattr(rule, "reduce") or rule.gram_needed else self.ranked
        span = self.span  # made on first use: not the rule's time
        start = time.perf_counter()
        answer = span.answer(rule, pre, np.eye(n, n + 2), shared)
        seconds = time.perf_counter() - start
        honesty = None if pre or answer.mix.honesty is None else self._to_all(answer.mix.honesty)
        weights = None if answer.weights is None else self._to_all(answer.weights)
        belief = honesty if honesty is not None else weights
        liar = np.arange(K) >= K - M
        accused = missed = auc = None
        if belief is not None:
            against = belief < (0.5 if honesty is not None else 0.1 / K)
            accused = float(against[~liar].mean())
            missed = float((~against[liar]).mean()) if M else None
            auc = detection_auc(belief, liar.tolist())
        return {
            "believed": told if contestant.told else None,
            "kappa": answer.moved / self.variance if np.isfinite(answer.moved) else float("inf"),
            "auc": auc,
            "accused": accused,
            "missed": missed,
            "estimated": None if honesty is None else float(K - honesty.sum()),
            "honesty": None if honesty is None else [round(float(p), 6) for p in honesty],
            "seconds": seconds,
        }

    def _to_all(self, values: Float) -> Float:
        full = np.zeros(len(self.usable))
        full[self.usable] = values
        return full


@dataclass(frozen=True)
class Task:
    """One population with M of K clients malicious: all attacks and all rules."""

    study: Study
    source: Source
    clients: int
    malicious: int

    def run(self) -> list[Case]:
        """Every case."""
        population = self.source.open(self.clients)
        H = self.clients - self.malicious
        honest = population.honest[:H]
        fixed = [spec for spec in self.study.attacks if words(spec)[0] != ADAPTIVE]
        cases: list[Case] = []
        if self.malicious == 0:
            return self._cases(population, "none", lambda _: Round(honest, honest[:0], population.root))
        for spec in fixed:
            forged = self._forge(population, spec, None, 0)
            if forged is not None:
                attacked = Round(honest, forged, population.root)
                cases += self._cases(population, spec, lambda _, attacked=attacked: attacked)
        for spec in self.study.attacks:
            if words(spec)[0] == ADAPTIVE:

                def against(entry: tuple[Contestant, int], spec: str = spec) -> Round:
                    forged = self._forge(population, spec, *entry)
                    assert forged is not None
                    return Round(honest, forged, population.root)

                cases += self._cases(population, spec, against)
        return cases

    def _entries(self) -> Iterator[tuple[Contestant, int, bool]]:
        """Every rule with the f that it is told; a rule that needs none runs once."""
        for spec in self.study.rules:
            contestant = Contestant(spec)
            for believed in self.study.believed if contestant.told else (None,):
                yield contestant, self.malicious if believed is None else believed, believed is not None

    def _cases(
        self, population: Population, attack: str, attacked: Callable[[tuple[Contestant, int]], Round]
    ) -> list[Case]:
        cases: list[Case] = []
        for contestant, f, guessed in self._entries():
            try:
                scores = attacked((contestant, f)).score(contestant, f)
            except ValueError:  # the rule refuses so few clients, whatever f is
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

    def _forge(self, population: Population, spec: str, contestant: Contestant | None, f: int) -> Float | None:
        """(M, d) what the attackers send; None for a data attack whose updates were not recorded."""
        name, _ = words(spec)
        if issubclass(ATTACKS[name], DataAttack):
            rows = population.poisoned.get(name)
            return None if rows is None or len(rows) < self.malicious else rows[len(rows) - self.malicious :]
        attack = attack_of(spec)
        assert isinstance(attack, UpdateAttack)
        H = self.clients - self.malicious
        pre, rule = (), None
        if contestant is not None:
            pre, rule, _ = contestant.build(K=self.clients, f=f, root=population.root)
        view = View(
            own=population.honest[H:],
            others=population.honest[:H],
            rng=np.random.default_rng([self.source.seed, self.malicious, *spec.encode()]),
            clients=self.clients,
            rule=rule,
            pre=pre,
        )
        with np.errstate(over="ignore"):
            return attack.forge(view)


def run(study: Study, *, jobs: int = 1, progress: Callable[[int, int], None] | None = None) -> list[Case]:
    """Every case of the study, in the same order and with the same numbers for any number of jobs.

    >>> study = Study(rules=["mean"], attacks=["sign_flip"], populations=["isotropic"], malicious=[4])
    >>> [(case.rule, case.attack, case.kappa > 0.5) for case in run(study)]
    [('mean', 'sign_flip', True)]
    """
    tasks = study.tasks()
    cases: list[Case] = []
    for done, found in enumerate(_map(tasks, jobs), start=1):
        cases += found
        if progress is not None:
            progress(done, len(tasks))
    return cases


def _map(tasks: list[Task], jobs: int) -> Iterable[list[Case]]:
    if jobs <= 1 or len(tasks) == 1:
        yield from (task.run() for task in tasks)
        return
    # matrices of 20 x 20 gain nothing from threads, and two processes with all threads each would fight
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            yield from pool.map(Task.run, tasks)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
