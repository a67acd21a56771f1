"""Every part of the study by name. This file has those without fixed attacks: patterns, search, quiet rounds, time."""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np

from honestly.kernels.estimator import PROGRAM
from honestly.rules.bayesian import compiled
from honestly.studies.layers.forge import forge
from honestly.studies.layers.measure import geometry_of, measure
from honestly.studies.layers.patterns import bound, patterns
from honestly.studies.layers.search import Attacker, WorstLie
from honestly.studies.layers.space import LayeredPopulation, Space
from study.common import Settings, rng
from study.fixed import calibration, data, layers, small, updates, whole
from study.populations import chosen, courses, family, sent, spaced
from study.rules import Entry


def copied(rules: list[Entry], settings: Settings):
    """Copy patterns, beside the bound that no rule without settings can beat."""
    rows = []
    for n, numbers in {5: (1, 2), 10: (1, 2, 3, 4), 20: (1, 4, 6, 8, 9), 50: (1, 12, 20, 24)}.items():
        for f in numbers:
            tallies, over, worst = defaultdict(list), defaultdict(int), {}
            for pattern in patterns(n, f, rng("patterns", n, f)):
                gram = pattern.updates @ pattern.updates.T
                for entry in rules:
                    move = entry.build(n, f).decide(geometry_of(gram[None])).matrix[0] @ pattern.updates
                    kappa = float(move @ move) / pattern.variance
                    over[entry.name] += kappa > 1.01 * bound(n, f)
                    if not tallies[entry.name] or kappa > max(tallies[entry.name]):
                        worst[entry.name] = pattern.name
                    tallies[entry.name].append(kappa)
            for name, tally in tallies.items():
                capped = np.mean(np.minimum(tally, 100))
                rows.append(
                    [f"{n}, {f}", name, len(tally), f"{bound(n, f):.2f}", f"{capped:.3f} / {max(tally):.3g}",
                     over[name], worst[name]]
                )  # fmt: skip
    return ["n, f", "rule", "n", "bound", "kappa mean (cut at 100) / max", "beyond", "worst"], rows


def adaptive(rules: list[Entry], settings: Settings):
    """The attacker that knows the rule and chooses its layers."""
    by_name = {c.name: c for c in courses(settings.where)}
    picked = [(c, r) for c in by_name.values() if settings.only in c.name for r in ADAPTIVE_ROUNDS.get(c.name, ())]
    rows = []
    for course, r in picked or [(c, spaced(c, 3)[1]) for c in list(by_name.values())[:3]]:
        population = LayeredPopulation.of(course, r)
        for goal, used in (("whole", population.whole()), ("whole, layers", population), ("worst layer", population)):
            for entry in rules:
                cells, lies = [], []
                for M in (4, 8, 9):
                    pipeline = entry.build(used.clients, M)
                    worst: list[WorstLie] = []
                    for seed in range(settings.seeds):
                        space = Space.of(used, M, rng(used.name, M, seed))
                        wish = "worst" if goal == "worst layer" else "whole"
                        attacker = Attacker(space, pipeline, wish, settings.tries)
                        worst.append(attacker.search(rng("adaptive", used.name, M, seed)))
                    best = max(worst, key=lambda one: one.value)
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
            space = Space.of(LayeredPopulation.of(course, r), 0, rng(course.name, r))
            for entry in rules:
                pipeline = entry.build(space.H, 0)
                score = measure(space, np.zeros((0, space.b)), pipeline)
                tallies[group, entry.name, r <= 5].append(score.false)
                kappas[group, entry.name].append(score.kappa)
    rows = []
    for group, name in kappas:
        cells = [tallies.get((group, name, early), []) for early in (True, False)]
        texts = [f"{np.mean(c):.2f} / {max(c)}" if c else "-" for c in cells]
        rows.append([group, name, *texts, f"{np.mean(kappas[group, name]):.4f}"])
    return ["nobody lies", "rule", "accused early mean / max", "late mean / max", "kappa mean"], rows


def runs(rules: list[Entry], settings: Settings):
    """What was sent in real runs: attackers missed and honest clients accused, round by round."""
    rows = []
    for course in sent(settings.where):
        M = len(course.rows) - course.clients
        n = len(course.rows)
        population_rows = {r: LayeredPopulation(course.name, g, course.sizes, n) for r, g in course.rounds.items()}
        for entry in rules:
            missed, false = [], []
            for r, population in population_rows.items():
                space = Space.of(population, M, rng(course.name, r))
                pipeline = entry.build(n, M)
                score = measure(space, space.own, pipeline)
                missed.append(score.missed)
                false.append(score.false)
            rows.append([course.name, entry.name, " ".join(map(str, missed)), " ".join(map(str, false))])
    return ["run", "rule", "missed by round", "honest accused by round"], rows


REPEATS = 500  # of a decision that is timed; slow ones end after 10 seconds


def clock(rules: list[Entry], settings: Settings):
    """Milliseconds of a decision by the C program and, in turn, by NumPy: CIFAR-10, layers or whole; random clients."""
    ways = {"C": 0.0, "NumPy": np.inf} if PROGRAM.library() is not None else {"NumPy": np.inf}
    populations = chosen(settings.where, rounds=3, only="cifar") or chosen(settings.where, rounds=3)
    layered = populations[1]
    whole_update, many = layered.whole(), crowd(layered, 100)
    cases = [(layered, 0, ""), (layered, 8, "label_flip"), (layered, 9, "mimic")]
    cases += [(whole_update, 0, ""), (whole_update, 8, "label_flip"), (many, 0, ""), (many, 40, "sign_flip")]
    rows = []
    for population, M, attack in cases:
        space = Space.of(population, M, rng("clock"))
        sent = forge(space, attack, rng("clock")) if M else np.zeros((0, space.b))
        assert sent is not None
        for entry in rules:
            times: dict[str, list[float]] = {way: [] for way in ways}
            end = time.perf_counter() + 10.0
            while time.perf_counter() < end and len(times["NumPy"]) < REPEATS:
                for way, worth_compiling in ways.items():
                    compiled.WORTH_COMPILING = worth_compiling
                    times[way].append(measure(space, sent, entry.build(population.clients, M)).seconds)
            cells = [f"{1e3 * value:.2f}" for way in times.values() for value in (min(way), np.median(way))]
            what = f"K = {population.clients}, L = {len(population.grams)}, " + (
                f"{attack} by {M}" if M else "no attack"
            )
            rows.append([what, entry.name, *cells])
    return ["", "rule", *(head for way in ways for head in (f"{way}, best", "median"))], rows


def crowd(like: LayeredPopulation, K: int) -> LayeredPopulation:
    """K clients with random updates about a common one, in layers of the same sizes (2,000 values at most)."""
    draws = rng("crowd", K)
    grams = []
    for size in np.minimum(like.sizes, 2000):
        updates = draws.normal(size=(K, size)) + draws.normal(size=size)
        grams.append(updates @ updates.T)
    return LayeredPopulation("crowd", np.stack(grams), like.sizes, K, recorded=False)


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
