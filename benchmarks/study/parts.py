"""What is measured: each part takes rules and settings and returns the rows of a table."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from honestly.bench.layers.forge import LAYERED, forge
from honestly.bench.layers.measure import geometry_of, measure
from honestly.bench.layers.patterns import bound, patterns, tolerated
from honestly.bench.layers.search import Attacker
from honestly.bench.layers.space import Population, Space
from honestly.bench.scores import calibration_error, reliability
from honestly.bench.stress import SUITE, Study
from honestly.bench.stress import run as run_study
from study.populations import chosen, courses, family, sent, spaced
from study.rules import Entry

ONE = tuple(spec for spec in SUITE if spec not in LAYERED or spec.startswith("jittered_mimic"))  # where L = 1


@dataclass
class Settings:
    """How much is measured."""

    where: Path | None
    rounds: int = 4
    only: str = ""
    malicious: tuple[int, ...] = (1, 2, 4, 6, 8, 9)
    tries: int = 240
    seeds: int = 2
    details: bool = False
    recorded: Path | None = None
    jobs: int = 1
    records: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Tally:
    """Cases of one row."""

    kappa: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    liars: list[int] = field(default_factory=list)
    false: list[int] = field(default_factory=list)
    honesty: list[float] = field(default_factory=list)
    honest: list[bool] = field(default_factory=list)

    def add(self, score):
        K, M = len(score.accused), score.M
        self.kappa.append(score.kappa)
        self.worst.append(score.worst_layer)
        self.missed.append(score.missed)
        self.liars.append(M)
        self.false.append(score.false)
        if score.honesty is not None:
            self.honesty += score.honesty.tolist()
            self.honest += [k < K - M for k in range(K)]

    def cells(self, layered=True):
        share = 100 * sum(self.missed) / max(sum(self.liars), 1)
        cells = [f"{np.mean(self.kappa):.4f} / {max(self.kappa):.2f}"]
        if layered:
            cells.append(f"{np.mean(self.worst):.3f} / {max(self.worst):.3g}")
        return [*cells, f"{share:.0f} %", f"{np.mean(self.false):.2f}"]


def rng(*words):
    """Random numbers that depend on the words alone."""
    return np.random.default_rng([b for word in words for b in str(word).encode()])


def attacked(populations, suite, malicious):
    """Every population under every attack that can be told: (population, M, attack, space, what is sent)."""
    for population in populations:
        for M in malicious:
            if population.clients <= 2 * M:
                continue
            space = Space.of(population, M, rng(population.name, M))
            for spec in suite:
                made = forge(space, spec, rng(population.name, M, spec))
                if made is not None:
                    yield population, M, spec, space, made


def _fixed(rules, settings, populations, suite, *, layered, malicious=None):
    tallies = defaultdict(Tally)
    by_attack, by_family, by_count = defaultdict(Tally), defaultdict(Tally), defaultdict(Tally)
    for population, M, spec, space, made in attacked(populations, suite, malicious or settings.malicious):
        for entry in rules:
            pre, rule = entry.build(population.clients, M)
            score = measure(space, made, rule, pre)
            for tally in (
                tallies[entry.name],
                by_attack[spec, entry.name],
                by_family[family(population.name), entry.name],
                by_count[f"M = {M}", entry.name],
            ):
                tally.add(score)
            settings.records.append(
                {"population": population.name, "M": M, "attack": spec, "rule": entry.name, "kappa": score.kappa,
                 "worst_layer": score.worst_layer, "missed": score.missed, "false": score.false}
            )  # fmt: skip
    rows = [["all", name, len(tally.kappa), *tally.cells(layered)] for name, tally in tallies.items()]
    groups = [by_family, by_count, *([by_attack] if settings.details else [])]
    for group in groups:
        rows += [[key, name, len(tally.kappa), *tally.cells(layered)] for (key, name), tally in group.items()]
    columns = ["cases", "rule", "n", "kappa mean / max", *(["worst layer mean / max"] if layered else [])]
    return [*columns, "missed", "accused"], rows


def whole(rules: list[Entry], settings: Settings):
    """Fixed attacks, updates as one layer (whole Gram matrices)."""
    populations = [p.whole() for p in chosen(settings.where, rounds=settings.rounds, only=settings.only)]
    return _fixed(rules, settings, populations, ONE, layered=False)


def layers(rules: list[Entry], settings: Settings):
    """Fixed attacks, every layer by itself."""
    populations = chosen(settings.where, rounds=settings.rounds, only=settings.only)
    return _fixed(rules, settings, populations, SUITE, layered=True)


def updates(rules: list[Entry], settings: Settings):
    """Fixed attacks on recorded updates with their coordinates (benchmarks/record_updates.py)."""
    files = tuple(sorted(str(path) for path in settings.recorded.glob("*.npz"))) if settings.recorded else ()
    if not files:
        return ["no updates: give --recorded FOLDER"], []
    names = [entry.name for entry in rules if ".py:" not in entry.name]
    study = Study(rules=names, attacks=SUITE, populations=files, malicious=(0, 4, 8, 9))
    cases = run_study(study, jobs=settings.jobs)
    settings.records += [case.asdict() for case in cases]
    rows = []
    for name in names:
        found = [case for case in cases if case.rule == name and case.malicious]
        quiet = [case.accused for case in cases if case.rule == name and not case.malicious]
        by_count = [np.mean([case.kappa for case in found if case.malicious == M]) for M in (4, 8, 9)]
        kappa = [case.kappa for case in found]
        cells = [f"{np.mean(kappa):.4f} / {max(kappa):.2f}", *(f"{x:.4f}" for x in by_count)]
        rows.append([name, len(found), *cells, f"{100 * np.mean(quiet):.1f} %"])
    return ["rule", "n", "kappa mean / max", "M = 4", "M = 8", "M = 9", "accused, nobody lies"], rows


def small(rules: list[Entry], settings: Settings):
    """Few clients: K = 10 with 4 attackers, K = 5 with 2; fixed attacks, with layers and as one."""
    columns, rows = [], []
    for K, M in ((10, 4), (5, 2)):
        populations = chosen(settings.where, rounds=settings.rounds, only=settings.only or "o0", clients=K)
        for label, used in (("layers", populations), ("whole", [p.whole() for p in populations])):
            columns, found = _fixed(
                rules, settings, used, SUITE if label == "layers" else ONE, layered=True, malicious=(M,)
            )
            rows += [[f"K = {K}, M = {M}, {label}", *row[1:]] for row in found if row[0] == "all"]
    return columns, rows


def copied(rules: list[Entry], settings: Settings):
    """Copy patterns against the bound that no rule told nothing can beat."""
    rows = []
    for n in (5, 10, 20):
        for f in range(1, tolerated(n) + 1):
            if n == 20 and f not in (1, 4, 6, 8, 9):
                continue
            tallies, over, worst = defaultdict(list), defaultdict(int), {}
            for pattern in patterns(n, f, rng("patterns", n, f)):
                gram = pattern.updates @ pattern.updates.T
                for entry in rules:
                    pre, rule = entry.build(n, f)
                    geometry, through = geometry_of(gram[None]), np.eye(n)
                    for mixer in pre:
                        A = mixer.mix(geometry)
                        geometry, through = geometry.mixed(A), A @ through
                    move = (rule.mix(geometry).matrix[0] @ through) @ pattern.updates
                    kappa = float(move @ move) / pattern.variance
                    over[entry.name] += kappa > 1.01 * bound(n, f)
                    if not tallies[entry.name] or kappa > max(tallies[entry.name]):
                        worst[entry.name] = pattern.name
                    tallies[entry.name].append(kappa)
            for name, found in tallies.items():
                capped = np.mean(np.minimum(found, 100))
                rows.append(
                    [f"{n}, {f}", name, len(found), f"{bound(n, f):.2f}", f"{capped:.3f} / {max(found):.3g}",
                     over[name], worst[name]]
                )  # fmt: skip
    return ["n, f", "rule", "n", "bound", "kappa mean (cut at 100) / max", "beyond", "worst"], rows


def adaptive(rules: list[Entry], settings: Settings):
    """The attacker that knows the rule and chooses its layers."""
    found = {c.name: c for c in courses(settings.where)}
    picked = [(c, r) for c in found.values() if settings.only in c.name for r in ADAPTIVE_ROUNDS.get(c.name, ())]
    rows = []
    for course, r in picked or [(c, spaced(c, 3)[1]) for c in list(found.values())[:3]]:
        population = Population.of(course, r)
        for goal, used in (("whole", population.whole()), ("whole, layers", population), ("worst layer", population)):
            for entry in rules:
                cells, lies = [], []
                for M in (4, 8, 9):
                    pre, rule = entry.build(used.clients, M)
                    best = None
                    for seed in range(settings.seeds):
                        space = Space.of(used, M, rng(used.name, M, seed))
                        attacker = Attacker(
                            space, rule, "worst" if goal == "worst layer" else "whole", settings.tries, pre
                        )
                        one = attacker.search(rng("adaptive", used.name, M, seed))
                        best = one if best is None or one.value > best.value else best
                    cells.append(f"{best.value:.2f}" if best.value < 1e3 else f"{best.value:.0e}")
                    lie = best.lie
                    lies.append(f"{lie.direction} {lie.t:.2g}+{lie.j:.2g}{lie.hiding[0]} in {int(lie.layers.sum())}")
                rows.append([f"{course.name} r{r}", goal, entry.name, " / ".join(cells), "; ".join(lies)])
    tries = f"{settings.tries} tries x {settings.seeds} seeds"
    return ["population", "goal", "rule", f"M = 4 / 8 / 9 ({tries})", "by"], rows


ADAPTIVE_ROUNDS = {
    "mnist-a0.5-o0-s0": (3,),
    "mnist-a1.0-o0-s0": (12,),
    "cifar-a0.5-o0-s0": (10,),
    "digits-cnn-o0-s0": (12,),
}


def quiet(rules: list[Entry], settings: Settings):
    """Nobody lies: honest clients accused per round, early (rounds <= 5) and late, all averaged or 8 left out."""
    tallies, kappas = defaultdict(list), defaultdict(list)
    for course in courses(settings.where):
        if settings.only not in course.name:
            continue
        out = course.left_out or ("-o8-" in course.name) * 8
        group = f"{family(course.name)}, {out} left out" if out else family(course.name)
        for r in course.rounds:
            space = Space.of(Population.of(course, r), 0, rng(course.name, r))
            for entry in rules:
                pre, rule = entry.build(space.H, 0)
                score = measure(space, np.zeros((0, space.b)), rule, pre)
                tallies[group, entry.name, r <= 5].append(score.false)
                kappas[group, entry.name].append(score.kappa)
    rows = []
    for group, name in kappas:
        cells = [tallies.get((group, name, early), []) for early in (True, False)]
        shown = [f"{np.mean(c):.2f} / {max(c)}" if c else "-" for c in cells]
        rows.append([group, name, *shown, f"{np.mean(kappas[group, name]):.4f}"])
    return ["nobody lies", "rule", "accused early mean / max", "late mean / max", "kappa mean"], rows


def runs(rules: list[Entry], settings: Settings):
    """What was sent in real runs: attackers missed and honest clients accused, round by round."""
    rows = []
    for course in sent(settings.where):
        M = len(course.rows) - course.clients
        n = len(course.rows)
        population_rows = {r: Population(course.name, g, course.sizes, n) for r, g in course.rounds.items()}
        for entry in rules:
            missed, false = [], []
            for r, population in population_rows.items():
                space = Space.of(population, M, rng(course.name, r))
                pre, rule = entry.build(n, M)
                score = measure(space, space.own, rule, pre)
                missed.append(score.missed)
                false.append(score.false)
            rows.append([course.name, entry.name, " ".join(map(str, missed)), " ".join(map(str, false))])
    return ["run", "rule", "missed by round", "honest accused by round"], rows


def data(rules: list[Entry], settings: Settings):
    """Data attacks: attackers missed per round, early (rounds <= 5) and late, by M."""
    tallies = defaultdict(Tally)
    for course in courses(settings.where):
        if settings.only not in course.name:
            continue
        for r in course.rounds:
            population = Population.of(course, r)
            for _, M, spec, space, made in attacked([population], ("label_flip", "backdoor"), (2, 4, 8)):
                for entry in rules:
                    pre, rule = entry.build(population.clients, M)
                    score = measure(space, made, rule, pre)
                    tallies[family(course.name), spec, M, entry.name, r <= 5].add(score)
    rows = []
    for group, spec, M, name in dict.fromkeys(key[:-1] for key in tallies):
        cells = []
        for early in (True, False):
            tally = tallies.get((group, spec, M, name, early))
            cells.append("-" if tally is None else f"{np.mean(tally.missed):.1f}, {np.mean(tally.false):.2f}, "
                         f"{np.mean(tally.kappa):.3f}, {np.mean(tally.worst):.2f}")  # fmt: skip
        rows.append([group, f"{spec} by {M}", name, *cells])
    return ["data", "attack", "rule", "early: missed, accused, kappa, worst layer", "late"], rows


def calibration(rules: list[Entry], settings: Settings):
    """Stated honesty against the share that was honest, over all fixed attacks and populations."""
    tallies = defaultdict(Tally)
    populations = chosen(settings.where, rounds=settings.rounds, only=settings.only)
    for population, M, _, space, made in attacked(populations, SUITE, settings.malicious):
        for entry in rules:
            pre, rule = entry.build(population.clients, M)
            tallies[entry.name].add(measure(space, made, rule, pre))
    rows = []
    for name, tally in tallies.items():
        curve = reliability(tally.honesty, tally.honest)
        error = calibration_error(curve)
        shown = " ".join(f"{b.said:.2f}:{b.true:.2f}({b.count})" for b in curve)
        rows.append([name, "-" if error is None else f"{error:.3f}", shown])
    return ["rule", "error", "said:true(clients)"], rows


def clock(rules: list[Entry], settings: Settings):
    """Milliseconds of a decision, K = 20: with all layers (62 on CIFAR-10) and with one; label flip by 8, no attack."""
    found = chosen(settings.where, rounds=3, only="cifar") or chosen(settings.where, rounds=3)
    rows = []
    for population in (found[1], found[1].whole()) if found else ():
        for M in (0, 8):
            space = Space.of(population, M, rng("clock"))
            made = np.zeros((0, space.b)) if M == 0 else forge(space, "label_flip", rng("clock"))
            for entry in rules:
                pre, rule = entry.build(population.clients, M)
                times, end = [], time.perf_counter() + 1.0
                while time.perf_counter() < end:
                    times.append(measure(space, made, rule, pre).seconds)
                cells = [f"{1e3 * min(times):.2f}", f"{1e3 * np.median(times):.2f}"]
                rows.append([f"L = {len(population.grams)}, M = {M}", entry.name, *cells])
    return ["K = 20", "rule", "ms, best", "median"], rows


PARTS = {
    "whole": whole,
    "layers": layers,
    "updates": updates,
    "small": small,
    "patterns": copied,
    "adaptive": adaptive,
    "quiet": quiet,
    "data": data,
    "runs": runs,
    "calibration": calibration,
    "time": clock,
}
