"""Selecting, counting and averaging the cases of a stress study, and columns of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from honestly.show.tables import Cell
from honestly.studies.attacked import Case
from honestly.studies.scores import calibration_error, reliability
from honestly.studies.specs import Contestant, words
from honestly.studies.stress import ADAPTIVE, SUITE

#: A number for each rule, from its cases.
Column: TypeAlias = Callable[[list[Case]], Cell]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values."""
    found = [v for v in values if v is not None]
    return float(np.mean(found)) if found else None


def worst(cases: Iterable[Case]) -> float | None:
    """The largest kappa."""
    found = [case.kappa for case in cases]
    return max(found) if found else None


def fixed_attacks(cases: Iterable[Case]) -> list[Case]:
    """The cases without the adaptive attacker, whose mean over attacks is meaningless."""
    return [case for case in cases if words(case.attack)[0] != ADAPTIVE]


def group_of(case: Case) -> str:
    """The column of a population: its kind, or "recorded" for all files together."""
    return "recorded" if case.recorded else case.population


def attacks_of(cases: Iterable[Case]) -> list[str]:
    """The attacks in the order of the suite, others after it in order of appearance."""
    found = list(dict.fromkeys(case.attack for case in cases))
    order = {attack: i for i, attack in enumerate((*SUITE, *(a for a in found if a not in SUITE)))}
    return sorted(found, key=order.__getitem__)


def rules_of(cases: Iterable[Case]) -> list[str]:
    """The rules in order of appearance."""
    return list(dict.fromkeys(case.rule for case in cases))


def counts_of(cases: Iterable[Case]) -> list[int]:
    """The numbers of attackers, without 0."""
    return sorted({case.malicious for case in cases if case.malicious})


def statements(cases: Iterable[Case]) -> tuple[list[float], list[bool]]:
    """Every stated honesty, and whether that client was honest."""
    said: list[float] = []
    true: list[bool] = []
    for case in cases:
        if case.honesty is not None:
            said += case.honesty
            true += [k < case.clients - case.malicious for k in range(case.clients)]
    return said, true


def attack_rows(
    cases: Sequence[Case], M: int, measure: Callable[[Case], float | None]
) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows of a table of attacks: the mean of a measure for each rule."""
    found = [case for case in cases if case.malicious == M]
    rules = rules_of(found)
    rows: list[list[Cell]] = []
    for attack in attacks_of(found):
        of_attack = [case for case in found if case.attack == attack]
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
    cases: Sequence[Case], columns: Sequence[Column], *, told: bool = True
) -> tuple[list[list[Cell]], list[bool]]:
    """A row for each rule: its name, what it is told, and the columns; and which rows are told nothing."""
    rows: list[list[Cell]] = []
    alone: list[bool] = []
    for rule in rules_of(cases):
        of_rule = [case for case in cases if case.rule == rule]
        knows = Contestant(rule).knows
        rows.append([rule, *([knows] if told else []), *(column(of_rule) for column in columns)])
        alone.append(knows == "nothing")
    return rows, alone


def where(chosen: Callable[[Case], bool], measured: Callable[[list[Case]], Cell]) -> Column:
    """A measure of the cases that are chosen."""
    return lambda found: measured([case for case in found if chosen(case)])


def with_malicious(M: int, measured: Callable[[list[Case]], Cell]) -> Column:
    """A measure of the cases with so many attackers."""
    return where(lambda case: case.malicious == M, measured)


def mean_kappa(found: list[Case]) -> Cell:
    """The mean kappa."""
    return mean(case.kappa for case in found)


def attacked(found: list[Case]) -> list[Case]:
    """The cases under a fixed attack."""
    return [case for case in fixed_attacks(found) if case.malicious]


#: kappa where nobody lies
quiet: Column = where(lambda case: not case.malicious, mean_kappa)


def accused_share(found: list[Case]) -> float | None:
    """The share of the honest clients that are accused where nobody lies."""
    return mean(case.accused for case in found if not case.malicious)


def missed(found: list[Case]) -> Cell:
    """Attackers that are not accused under the fixed attacks, in %."""
    share = mean(case.missed for case in attacked(found))
    return None if share is None else 100 * share


def calibration(found: list[Case]) -> Cell:
    """The calibration error of honesty under the fixed attacks."""
    return calibration_error(reliability(*statements(fixed_attacks(found))))


def milliseconds(found: list[Case]) -> Cell:
    """The median time of the rule itself."""
    return float(1e3 * np.median([case.seconds for case in found]))
