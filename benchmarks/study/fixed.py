"""Attacks that do not search: on whole updates, layer by layer, with few clients, on data; and calibration."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from honestly.studies.layers.forge import LAYERED
from honestly.studies.layers.measure import measure
from honestly.studies.layers.space import LayeredPopulation
from honestly.studies.scores import calibration_error, reliability
from honestly.studies.stress import SUITE, StressStudy
from honestly.studies.stress import run as run_study
from study.common import Settings, Tally, attacked
from study.populations import chosen, courses, family
from study.rules import Entry

ONE = tuple(spec for spec in SUITE if spec not in LAYERED or spec.startswith("jittered_mimic"))  # where L = 1


def _fixed(rules, settings, populations, suite, *, layered, malicious=None):
    tallies = defaultdict(Tally)
    by_attack, by_family, by_count = defaultdict(Tally), defaultdict(Tally), defaultdict(Tally)
    for population, M, spec, space, sent in attacked(populations, suite, malicious or settings.malicious):
        for entry in rules:
            pipeline = entry.build(population.clients, M)
            score = measure(space, sent, pipeline)
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
    study = StressStudy(rules=names, attacks=SUITE, populations=files, malicious=(0, 4, 8, 9))
    cases = run_study(study, jobs=settings.jobs)
    settings.records += [case.asdict() for case in cases]
    rows = []
    for name in names:
        attacked_cases = [case for case in cases if case.rule == name and case.malicious]
        quiet = [case.accused for case in cases if case.rule == name and not case.malicious]
        by_count = [np.mean([case.kappa for case in attacked_cases if case.malicious == M]) for M in (4, 8, 9)]
        kappa = [case.kappa for case in attacked_cases]
        cells = [f"{np.mean(kappa):.4f} / {max(kappa):.2f}", *(f"{x:.4f}" for x in by_count)]
        rows.append([name, len(attacked_cases), *cells, f"{100 * np.mean(quiet):.1f} %"])
    return ["rule", "n", "kappa mean / max", "M = 4", "M = 8", "M = 9", "accused, nobody lies"], rows


def small(rules: list[Entry], settings: Settings):
    """Few clients: K = 10 with 4 attackers, K = 5 with 2; fixed attacks, with layers and as one."""
    columns, rows = [], []
    for K, M in ((10, 4), (5, 2)):
        populations = chosen(settings.where, rounds=settings.rounds, only=settings.only or "o0", clients=K)
        for label, used in (("layers", populations), ("whole", [p.whole() for p in populations])):
            columns, result = _fixed(
                rules, settings, used, SUITE if label == "layers" else ONE, layered=True, malicious=(M,)
            )
            rows += [[f"K = {K}, M = {M}, {label}", *row[1:]] for row in result if row[0] == "all"]
    return columns, rows


def data(rules: list[Entry], settings: Settings):
    """Data attacks: attackers missed per round, early (rounds <= 5) and late, by M."""
    tallies = defaultdict(Tally)
    for course in courses(settings.where):
        if settings.only not in course.name:
            continue
        for r in course.rounds:
            population = LayeredPopulation.of(course, r)
            for _, M, spec, space, sent in attacked([population], ("label_flip", "backdoor"), (2, 4, 8)):
                for entry in rules:
                    pipeline = entry.build(population.clients, M)
                    score = measure(space, sent, pipeline)
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
    for population, M, _, space, sent in attacked(populations, SUITE, settings.malicious):
        for entry in rules:
            pipeline = entry.build(population.clients, M)
            tallies[entry.name].add(measure(space, sent, pipeline))
    rows = []
    for name, tally in tallies.items():
        curve = reliability(tally.honesty, tally.honest)
        error = calibration_error(curve)
        points = " ".join(f"{b.stated:.2f}:{b.true:.2f}({b.count})" for b in curve)
        rows.append([name, "-" if error is None else f"{error:.3f}", points])
    return ["rule", "error", "said:true(clients)"], rows
