"""The standings of rules in a suite, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from honestly.show.tables import Cell, Table, lowest
from honestly.studies.suites.spec import Suite
from honestly.studies.suites.standings import CAP, Standing

COLUMNS = (
    *("rule", "told", "judged on", "mean, layer", "median, layer", "adaptive, layer", "mean", "median", "adaptive"),
    *("accused %", "accused, attacked %", "missed %", "ms", "failed"),
)


def suite_table(suite: Suite, standings: Sequence[Standing]) -> Table:
    """Best mean of the worst layer first; rules without an answer in some round come last."""
    ordered = rank(standings)
    rows: list[list[Cell]] = [
        [
            *(s.rule, s.told, s.basis, s.mean_layer, s.median_layer, s.adaptive_layer, s.mean, s.median, s.adaptive),
            *(s.accused_quiet, s.accused, s.missed, s.milliseconds, s.failed + s.refused),
        ]
        for s in ordered
    ]
    uninformed = [s.told == "nothing" and not s.failed + s.refused for s in ordered]
    tries = standings[0].tries if standings else suite.tries
    return Table(
        suite.name,
        f"Suite {suite.name}",
        "kappa of the worst layer and of the whole update: mean and median over the fixed attacks (in the mean a round "
        f"counts {CAP:g} at most), and the worst case: the largest of these and of what an adaptive attacker found, "
        f"with {tries} tries against each rule in each round for each of the two. Honest clients turned against if "
        "nobody lies, and under attack; attackers not turned against; processor time of the decision; rounds without "
        "an answer, because the rule failed or refuses so few clients. Bold: the lowest of the rules that are told "
        "nothing.",
        COLUMNS,
        rows,
        lowest(rows, range(3, 12), uninformed),
    )


def rank(standings: Sequence[Standing]) -> list[Standing]:
    """Sort the standings as the table does."""

    def order(s: Standing) -> tuple[bool, float]:
        return s.failed > 0, float("inf") if s.mean_layer is None else s.mean_layer

    return sorted(standings, key=order)
