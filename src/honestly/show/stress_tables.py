"""Tables of a stress study: worst cases, means, honesty, and the cost of a wrong f."""

from __future__ import annotations

from collections.abc import Sequence

from honestly.show.layer_tables import attacks_run, layer_tables
from honestly.show.stress_cases import (
    accused_share,
    attack_rows,
    attacked,
    by_rule,
    calibration,
    counts_of,
    fixed_attacks,
    group_of,
    mean,
    mean_kappa,
    milliseconds,
    missed,
    quiet,
    rules_of,
    search_clause,
    where,
    with_malicious,
    worst,
)
from honestly.show.tables import Cell, Table, lowest
from honestly.studies.attacked import Case
from honestly.studies.specs import Contestant

#: The rule that a study is about, if it takes part.
OURS = "bayesian"


def tables(cases: Sequence[Case], attacks: Sequence[str] = ()) -> list[Table]:
    """All tables, for each number of clients; populations known by layer have tables of their own.

    ``attacks`` are the requested ones; a table says which of them were run.
    """
    result = [attacks_run(cases, attacks)] if attacks else []
    whole = [case for case in cases if case.layer is None]
    layered = [case for case in cases if case.layer is not None and not case.guessed]
    for K in sorted({case.clients for case in cases}):
        of_layers = [case for case in layered if case.clients == K]
        result += layer_tables(of_layers, K) if of_layers else []
        of_K = [case for case in whole if case.clients == K]
        informed = [case for case in of_K if not case.guessed]
        if any(case.malicious for case in informed):
            result += [aim(informed, K), worst_cases(informed, K), means(informed, K)]
            result += [by_population(informed, K, M) for M in counts_of(informed)]
            result += [by_attack(informed, K, M) for M in counts_of(informed)[-2:]]
        if informed:
            result.append(truthfulness(informed, K))
        if any(case.guessed for case in of_K):
            result.append(wrong_f(of_K, K))
    if len({case.clients for case in whole}) > 1:
        result.append(by_clients([case for case in whole if not case.guessed]))
    return [table for table in result if table.rows]


def _lies(case: Case) -> bool:
    return case.malicious > 0


def worst_cases(cases: Sequence[Case], K: int) -> Table:
    """The worst case over all populations and attacks, the adaptive one included, for each number of attackers."""
    counts = counts_of(cases)
    rows, uninformed = by_rule(cases, [with_malicious(M, worst) for M in counts])
    return Table(
        "worst",
        f"Worst case, {K} clients",
        f"The largest kappa over all populations and attacks ({search_clause(cases)}). Bold: the lowest of the rules "
        "that are told nothing: neither the number of attackers f nor a trusted update or client.",
        ["rule", "told", *(f"M = {M}" for M in counts)],
        rows,
        lowest(rows, range(2, 2 + len(counts)), uninformed),
    )


def means(cases: Sequence[Case], K: int) -> Table:
    """The mean over populations and fixed attacks."""
    counts = counts_of(cases)
    columns = [*(with_malicious(M, mean_kappa) for M in (0, *counts)), *(where(_lies, m) for m in (mean_kappa, worst))]
    rows, uninformed = by_rule(fixed_attacks(cases), columns)
    return Table(
        "mean",
        f"Mean over the fixed attacks, {K} clients",
        "Mean kappa over all populations and all attacks that do not search; the last column is their worst case.",
        ["rule", "told", *(f"M = {M}" for M in (0, *counts)), "all M > 0", "worst fixed"],
        rows,
        lowest(rows, range(2, 5 + len(counts)), uninformed),
    )


def by_population(cases: Sequence[Case], K: int, M: int) -> Table:
    """The worst case on each population."""
    of_count = [case for case in cases if case.malicious == M]
    groups = list(dict.fromkeys(group_of(case) for case in of_count))
    rows, uninformed = by_rule(of_count, [where(lambda case, g=group: group_of(case) == g, worst) for group in groups])
    return Table(
        f"population_{M}",
        f"Worst case on each population, {M} of {K} malicious",
        f"The largest kappa over all attacks ({search_clause(of_count)}).",
        ["rule", "told", *groups],
        rows,
        lowest(rows, range(2, 2 + len(groups)), uninformed),
    )


def by_clients(cases: Sequence[Case]) -> Table:
    """The worst case for each number of clients, with the most attackers that were tried there."""
    most = {K: max(case.malicious for case in cases if case.clients == K) for K in {case.clients for case in cases}}
    sizes = sorted(K for K in most if most[K])
    columns = [where(lambda case, at=(K, most[K]): (case.clients, case.malicious) == at, worst) for K in sizes]
    rows, uninformed = by_rule(cases, columns)
    return Table(
        "clients",
        "Worst case for different numbers of clients",
        "The largest kappa over all populations and attacks, with the largest number of attackers of the study.",
        ["rule", "told", *(f"{most[K]} of {K}" for K in sizes)],
        rows,
        lowest(rows, range(2, 2 + len(sizes)), uninformed),
    )


def by_attack(cases: Sequence[Case], K: int, M: int) -> Table:
    """The mean over populations for each attack."""
    columns, rows = attack_rows(cases, M, lambda case: case.kappa)
    note = "Mean kappa over the populations; the adaptive attacker differs from rule to rule."
    return Table(f"attack_{M}", f"Each attack, {M} of {K} malicious", note, columns, rows)


def truthfulness(cases: Sequence[Case], K: int) -> Table:
    """What the rules say of the clients: false accusations, detection, calibration."""

    def accused(cases: list[Case]) -> Cell:
        share = accused_share(cases)
        return None if share is None else 100 * share

    def count_error(cases: list[Case]) -> Cell:
        return mean(
            None if case.estimated is None else abs(case.estimated - case.malicious) for case in attacked(cases)
        )

    def auc(cases: list[Case]) -> Cell:
        return mean(case.auc for case in attacked(cases))

    rows, _ = by_rule(cases, [quiet, accused, auc, missed, count_error, calibration, milliseconds])
    return Table(
        "truth",
        f"What the rules say of the clients, {K} clients",
        "Without attacker: kappa and the honest clients turned against (honesty below 1/2, or a weight below a tenth "
        "of an equal share), in %. Under the fixed attacks: AUC of telling honest from malicious, attackers not "
        "turned against in %, mean error of the estimated number of attackers, expected calibration error of honesty. "
        "Last: median time of the rule itself, in ms.",
        ["rule", "told", "kappa, M = 0", "accused %", "AUC", "missed %", "count error", "calibration", "ms"],
        rows,
    )


def wrong_f(cases: Sequence[Case], K: int) -> Table:
    """Mean and worst kappa of each rule that needs f, for what it believed, beside the best that needs none."""
    counts = counts_of(cases)
    rows: list[list[Cell]] = []
    for rule in rules_of(cases):
        of_rule = [case for case in cases if case.rule == rule]
        if not Contestant(rule).needs_f:
            rows.append([rule, "needs none", *_mean_worst(of_rule, counts)])
            continue
        for label, chosen in (("the truth", [case for case in of_rule if not case.guessed]), *_guesses(of_rule)):
            if chosen:
                rows.append([rule, label, *_mean_worst(chosen, counts)])
    return Table(
        "wrong_f",
        f"What a wrong guess of the number of attackers costs, {K} clients",
        "Mean kappa over the fixed attacks / worst case over all attacks. A guess that a rule does not accept with "
        "these clients is lowered to the largest that it accepts.",
        ["rule", "believed f", *(f"M = {M}: {what}" for M in counts for what in ("mean", "worst"))],
        rows,
    )


def _guesses(cases: Sequence[Case]) -> list[tuple[str, list[Case]]]:
    """Cases by what was believed; a guess that was lowered counts as what it became."""
    guessed = [case for case in cases if case.guessed]
    values = sorted({case.believed for case in guessed if case.believed is not None})
    return [(str(f), [case for case in guessed if case.believed == f]) for f in values]


def _mean_worst(cases: Sequence[Case], counts: Sequence[int]) -> list[Cell]:
    cells: list[Cell] = []
    for M in counts:
        of_count = [case for case in cases if case.malicious == M]
        cells += [mean(case.kappa for case in fixed_attacks(of_count)), worst(of_count)]
    return cells


def aim(cases: Sequence[Case], K: int) -> Table:
    """The default Bayesian rule beside the best of those that are not told f, and of those that are."""
    rows: list[list[Cell]] = []
    for M in counts_of(cases):
        of_count = [case for case in cases if case.malicious == M]
        groups = list(dict.fromkeys(group_of(case) for case in of_count))
        for group in (*groups, "all") if len(groups) > 1 else groups:
            here = [case for case in of_count if group in ("all", group_of(case))]
            worsts = {rule: worst(case for case in here if case.rule == rule) for rule in rules_of(here)}
            ours = worsts.get(OURS)
            if ours is None:
                continue
            rivals = {rule: x for rule, x in worsts.items() if rule != OURS and x is not None}
            uninformed = min(
                ((x, r) for r, x in rivals.items() if Contestant(r).knows == "nothing"), default=(None, "-")
            )
            informed = min(((x, r) for r, x in rivals.items() if Contestant(r).knows == "f"), default=(None, "-"))
            rows.append(
                [
                    f"M = {M}, {group}",
                    ours,
                    *(c for x, r in (uninformed, informed) for c in (x, r, ours / x if x else None)),
                ]
            )
    return Table(
        "aim",
        f"The default rule beside the best others, worst case, {K} clients",
        "Worst kappa of `bayesian`; the best rule that is told nothing and the best that is told the true f, each with "
        "the ratio ours / theirs (below 1: ours is better).",
        ["case", "bayesian", "best told nothing", "which", "ratio", "best told f", "which one", "ratio to it"],
        rows,
    )
