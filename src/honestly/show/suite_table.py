"""Where rules stand in a suite, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from honestly.show.tables import Cell, Table, lowest
from honestly.studies.suites.judge import Standing
from honestly.studies.suites.spec import Suite

COLUMNS = (
    *("rule", "told", "mean", "mean, layer", "worst", "worst, layer", "adaptive", "adaptive, layer", "accused %"),
    *("accused, attacked %", "missed %", "ms", "failed"),
)


def suite_table(suite: Suite, standings: Sequence[Standing]) -> Table:
    """Best mean of the worst layer first; rules without an answer in some round come last."""
    ordered = rank(standings)
    rows: list[list[Cell]] = [
        [
            *(s.rule, s.told, s.mean, s.mean_layer, s.worst, s.worst_layer, s.adaptive, s.adaptive_layer),
            *(s.accused_quiet, s.accused, s.missed, s.milliseconds, s.failed + s.refused),
        ]
        for s in ordered
    ]
    alone = [s.told == "nothing" and not s.failed + s.refused for s in ordered]
    tries = standings[0].tries if standings else suite.tries
    return Table(
        suite.name,
        f"Suite {suite.name}",
        "kappa of the whole update and of its worst layer: mean (a round counts 100 at most) and worst over the fixed "
        "attacks, then the worst case of these and of an adaptive attacker, with "
        f"{tries} tries against each rule in each round for each of the two. Honest clients turned "
        "against if nobody lies, and under attack; attackers not turned against; median time of the "
        "rule itself; rounds without an answer, because the rule failed or refuses so few clients. Bold: the lowest of "
        "the rules that are told nothing.",
        COLUMNS,
        rows,
        lowest(rows, range(2, 11), alone),
    )


def rank(standings: Sequence[Standing]) -> list[Standing]:
    """In the order of the table."""

    def order(s: Standing) -> tuple[bool, float]:
        return s.failed > 0, float("inf") if s.mean_layer is None else s.mean_layer

    return sorted(standings, key=order)
