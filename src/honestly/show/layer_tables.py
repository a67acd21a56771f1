"""Tables of a stress study: results on populations known by layer, and what was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from honestly.show.stress_cases import (
    accused_share,
    attack_rows,
    attacked,
    attacks_of,
    by_rule,
    calibration,
    counts_of,
    fixed_attacks,
    mean,
    mean_kappa,
    milliseconds,
    missed,
    quiet,
    rules_of,
    search_clause,
    tries_of,
    with_malicious,
    worst,
)
from honestly.show.tables import Cell, Table, lowest
from honestly.studies.attacked import Case
from honestly.studies.specs import words
from honestly.studies.stress import ADAPTIVE, SUITE


def layer_tables(cases: Sequence[Case], K: int) -> list[Table]:
    """Worst cases, means, and what is said of the clients, for one number of clients."""
    counts = counts_of(cases)
    tables: list[Table] = []
    if counts:
        tables += [worst_layers(cases, K), mean_layers(cases, K)]
        tables += [by_attack(cases, K, M) for M in counts[-2:]]
    return [*tables, truth_by_layer(cases, K)]


def _worst_layer(cases: Iterable[Case]) -> float | None:
    return max((case.layer for case in cases if case.layer is not None), default=None)


def _mean_layer(cases: Iterable[Case]) -> float | None:
    return mean(case.layer for case in cases)


def worst_layers(cases: Sequence[Case], K: int) -> Table:
    """The worst case of all layers together and of a single one, for each number of attackers."""
    counts = counts_of(cases)
    columns = [with_malicious(M, measured) for M in counts for measured in (worst, _worst_layer)]
    rows, uninformed = by_rule(cases, columns, with_knowledge=False)
    return Table(
        "layer_worst",
        f"Worst case by layer, {K} clients",
        "Populations known by layer: the largest kappa of the whole update, and of a single layer, over all attacks "
        f"({search_clause(cases)} for each of the two goals). Bold: the lowest of the rules that are told nothing.",
        ["rule", *(f"M = {M}{what}" for M in counts for what in ("", ", layer"))],
        rows,
        lowest(rows, range(1, 1 + len(columns)), uninformed),
    )


def mean_layers(cases: Sequence[Case], K: int) -> Table:
    """The mean over the fixed attacks, of the whole update and of its worst layer."""
    counts = counts_of(cases)
    columns = [with_malicious(M, measured) for M in counts for measured in (mean_kappa, _mean_layer)]
    rows, uninformed = by_rule(fixed_attacks(cases), columns, with_knowledge=False)
    return Table(
        "layer_mean",
        f"Mean over the fixed attacks by layer, {K} clients",
        "Populations known by layer: mean kappa of the whole update, and of the layer where it is largest.",
        ["rule", *(f"M = {M}{what}" for M in counts for what in ("", ", layer"))],
        rows,
        lowest(rows, range(1, 1 + len(columns)), uninformed),
    )


def by_attack(cases: Sequence[Case], K: int, M: int) -> Table:
    """The mean kappa of the worst layer for each attack."""
    columns, rows = attack_rows(cases, M, lambda case: case.layer)
    note = "Mean over the populations of the kappa of the worst layer."
    return Table(f"attack_layer_{M}", f"Worst layer under each attack, {M} of {K} malicious", note, columns, rows)


def truth_by_layer(cases: Sequence[Case], K: int) -> Table:
    """What the rules say of the clients."""

    def accused(cases: list[Case]) -> Cell:
        share = accused_share(cases)
        return None if share is None else K * share

    def most(cases: list[Case]) -> Cell:
        return max((round(K * (case.accused or 0.0)) for case in cases if not case.malicious), default=None)

    def blamed(cases: list[Case]) -> Cell:
        return mean(None if case.accused is None else case.accused * (K - case.malicious) for case in attacked(cases))

    rows, _ = by_rule(cases, [quiet, accused, most, blamed, missed, calibration, milliseconds], with_knowledge=False)
    return Table(
        "layer_truth",
        f"What the rules say of the clients by layer, {K} clients",
        "Nobody lies: kappa, honest clients accused per round, and the most in one round. Under the fixed attacks: "
        "honest clients accused per round, attackers not accused in %, calibration error of honesty. Last: median "
        "time of the rule itself, in ms.",
        ["rule", "quiet kappa", "accused", "most", "attacked", "missed %", "calibration", "ms"],
        rows,
    )


def attacks_run(cases: Sequence[Case], attacks: Sequence[str] = SUITE) -> Table:
    """Which attackers were run on which populations, and why others were not."""
    rows: list[list[Cell]] = []
    missing: list[str] = []
    really: list[str] = []
    for label, layered in (("updates", False), ("by layer", True)):
        of_kind = [case for case in cases if (case.layer is not None) == layered]
        if not of_kind:
            continue
        ran = {case.attack for case in of_kind if case.attack != "none"}
        searched = {attack for attack in ran if words(attack)[0] == ADAPTIVE}
        rows.append(
            [
                label,
                len({(case.population, case.seed) for case in of_kind}),
                len(rules_of(of_kind)),
                len(ran - searched),
                len(attacks_of(case for case in of_kind if words(case.attack)[0] == ADAPTIVE)),
                tries_of(of_kind),
            ]
        )
        counts = Counter(words(attack)[0] for attack in attacks_of(case for case in of_kind if case.attack != "none"))
        names = ", ".join(f"{name} in {n} ways" if n > 1 else name for name, n in counts.items())
        really.append(f"On {'populations known by layer' if layered else 'updates'}: {names or 'no attacker'}.")
        absent = dict.fromkeys(
            words(attack)[0] for attack in attacks if attack not in ran and words(attack)[0] != ADAPTIVE
        )
        if absent:
            why = "they need coordinates, or were not recorded" if layered else "they need layers, or were not recorded"
            missing.append(
                f"Not run on populations {'known ' if layered else 'of '}{label} ({why}): {', '.join(absent)}."
            )
    if missing:
        missing.append("Attacks on the data are recorded by `honestly stress --record OUT.npz attack=NAME`.")
    return Table(
        "run",
        "What was run",
        " ".join(["Fixed attacks, and attackers that search against each rule, with their tries.", *really, *missing]),
        ["populations", "number", "rules", "fixed attacks", "searching", "tries"],
        rows,
    )
