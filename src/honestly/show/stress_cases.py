"""Selecting, counting and averaging the cases of a stress study, and columns of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from honestly.show.tables import Cell
from honestly.studies.attacked import Case
from honestly.studies.scores import calibration_error, reliability
from honestly.studies.specs import Contestant
from honestly.studies.stress import SUITE, searches

#: A number for each rule, from its cases.
Column: TypeAlias = Callable[[list[Case]], Cell]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values."""
    numbers = [v for v in values if v is not None]
    return float(np.mean(numbers)) if numbers else None


def worst(cases: Iterable[Case]) -> float | None:
    """The largest kappa."""
    kappas = [case.kappa for case in cases]
    return max(kappas) if kappas else None


def fixed_attacks(cases: Iterable[Case]) -> list[Case]:
    """The cases without attackers that search, whose mean over attacks is meaningless."""
    return [case for case in cases if not searches(case.attack)]


def group_of(case: Case) -> str:
    """The column of a population: its kind, or "recorded" for all files together."""
    return "recorded" if case.recorded else case.population


def attacks_of(cases: Iterable[Case]) -> list[str]:
    """The attacks in the order of the suite, others after it in order of appearance."""
    attacks = list(dict.fromkeys(case.attack for case in cases))
    order = {attack: i for i, attack in enumerate((*SUITE, *(a for a in attacks if a not in SUITE)))}
    return sorted(attacks, key=order.__getitem__)


def rules_of(cases: Iterable[Case]) -> list[str]:
    """The rules in order of appearance."""
    return list(dict.fromkeys(case.rule for case in cases))


def counts_of(cases: Iterable[Case]) -> list[int]:
    """The numbers of attackers, without 0."""
    return sorted({case.malicious for case in cases if case.malicious})


def statements(cases: Iterable[Case]) -> tuple[list[float], list[bool]]:
    """Every stated honesty, and whether that client was honest."""
    honesty: list[float] = []
    true: list[bool] = []
    for case in cases:
        if case.honesty is not None:
            honesty += case.honesty
            true += [k < case.clients - case.malicious for k in range(case.clients)]
    return honesty, true


def attack_rows(
    cases: Sequence[Case], M: int, measure: Callable[[Case], float | None]
) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows of a table of attacks: the mean of a measure for each rule."""
    of_count = [case for case in cases if case.malicious == M]
    rules = rules_of(of_count)
    rows: list[list[Cell]] = []
    for attack in attacks_of(of_count):
        of_attack = [case for case in of_count if case.attack == attack]
        rows.append([attack, *(mean(measure(case) for case in of_attack if case.rule == rule) for rule in rules)])
    return ["attack", *rules], rows


def tries_of(cases: Iterable[Case]) -> str:
    """How many lies the attackers that search tried against a rule in one round: "120", "310 to 356", or "-"."""
    tries = {case.tries for case in cases if case.tries is not None}
    return "-" if not tries else f"{min(tries)} to {max(tries)}" if len(tries) > 1 else str(min(tries))


def search_clause(cases: Iterable[Case]) -> str:
    """The same as a clause for the note of a table of worst cases."""
    tries = tries_of(cases)
    return "no attacker searched" if tries == "-" else f"an adaptive attacker included, with {tries} tries per round"


# ---- columns


def by_rule(
    cases: Sequence[Case], columns: Sequence[Column], *, with_knowledge: bool = True
) -> tuple[list[list[Cell]], list[bool]]:
    """A row for each rule: its name, what it is told, and the columns; and which rows are told nothing."""
    rows: list[list[Cell]] = []
    uninformed: list[bool] = []
    for rule in rules_of(cases):
        of_rule = [case for case in cases if case.rule == rule]
        knows = Contestant(rule).knows
        rows.append([rule, *([knows] if with_knowledge else []), *(column(of_rule) for column in columns)])
        uninformed.append(knows == "nothing")
    return rows, uninformed


def where(chosen: Callable[[Case], bool], measured: Callable[[list[Case]], Cell]) -> Column:
    """A measure of the cases that are chosen."""
    return lambda cases: measured([case for case in cases if chosen(case)])


def with_malicious(M: int, measured: Callable[[list[Case]], Cell]) -> Column:
    """A measure of the cases with so many attackers."""
    return where(lambda case: case.malicious == M, measured)


def mean_kappa(cases: list[Case]) -> Cell:
    """The mean kappa."""
    return mean(case.kappa for case in cases)


def attacked(cases: list[Case]) -> list[Case]:
    """The cases under a fixed attack."""
    return [case for case in fixed_attacks(cases) if case.malicious]


#: kappa where nobody lies
quiet: Column = where(lambda case: not case.malicious, mean_kappa)


def accused_share(cases: list[Case]) -> float | None:
    """The share of the honest clients that are accused where nobody lies."""
    return mean(case.accused for case in cases if not case.malicious)


def missed(cases: list[Case]) -> Cell:
    """Attackers that are not accused under the fixed attacks, in %."""
    share = mean(case.missed for case in attacked(cases))
    return None if share is None else 100 * share


def calibration(cases: list[Case]) -> Cell:
    """The calibration error of honesty under the fixed attacks."""
    return calibration_error(reliability(*statements(fixed_attacks(cases))))


def milliseconds(cases: list[Case]) -> Cell:
    """The median time of the rule itself."""
    return float(1e3 * np.median([case.seconds for case in cases]))
