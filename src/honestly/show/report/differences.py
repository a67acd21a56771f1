"""Where our numbers differ from the paper's: by rule and attack, over data sets, configurations and alphas."""

from __future__ import annotations

from collections.abc import Mapping

from honestly.show.report.published import ATTACKS, RULES, Comparison, Key, published_numbers
from honestly.show.report.results import STATISTICS
from honestly.show.tables import Table

MEASURED = [(a, m) for a in ATTACKS for m in (("ACC", "ASR") if a == "backdoor" else ("ACC",))]


def differences(comparisons: Mapping[Key, Comparison], statistic: str) -> Table:
    """Ours minus the paper's: mean, lowest, highest, and how many numbers were run with the paper's rounds."""
    apart: dict[tuple[str, str, str], list[float]] = {}
    for key, one in comparisons.items():
        if key in published_numbers() and one.difference is not None and one.verdict != "half":
            apart.setdefault((key.rule, key.column.attack, key.column.metric), []).append(one.difference)
    return Table(
        f"differences-{statistic}",
        f"Ours minus the paper's, {STATISTICS[statistic]}",
        "Mean over data sets, configurations and α, from the lowest to the highest, and how many numbers. "
        "A positive difference is better for ACC and worse for ASR.",
        ["rule", *(f"{ATTACKS[attack]} {metric}" for attack, metric in MEASURED)],
        [[rule, *(_range(apart.get((rule, attack, metric), [])) for attack, metric in MEASURED)] for rule in RULES],
    )


def _range(values: list[float]) -> str:
    """
    >>> _range([-0.014, 0.0]), _range([])
    ('-0.01 (-0.01 to +0.00, 2)', '·')
    """
    if not values:
        return "·"
    mean = sum(values) / len(values)
    return f"{mean:+.2f} ({min(values):+.2f} to {max(values):+.2f}, {len(values)})"
