"""The heatmaps of a run: who attacked, which clients the rule believed, and the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.runs.record import RoundRecord
from honestly.show.chart import DOT, RING, Chart, Grid, Heatmap, Line

#: The colour of a client that behaved: blue, but paler than that of a believed client.
BEHAVED = 0.7
BELIEF = {"honesty": "Probability of being honest", "weights": "Weight, relative to the largest of the round"}
#: Weights are shown if a believed client has less than this share of the largest weight.
SHORTENED = 0.5

Records = Sequence[RoundRecord]


def attack_grid(records: Records, clients: int) -> Grid:
    """(K, rounds): 1 for a client that attacked, 0 for one that behaved, NaN for one that did not take part."""
    grid = np.full((clients, len(records)), np.nan)
    for t, record in enumerate(records):
        grid[list(record.participants or ()), t] = 0.0
        grid[list(record.attacked), t] = 1.0
    return grid


def belief_of(records: Records) -> str | None:
    """What a rule says about its clients: "honesty", "weights" or None."""
    return next((key for key in BELIEF if any(getattr(r, key) is not None for r in records)), None)


def belief_grid(records: Records, clients: int) -> tuple[Grid, str] | None:
    """(K, rounds) honesty, or weights relative to the largest, and which; None if the rule gives neither."""
    key = belief_of(records)
    if key is None:
        return None
    return _grid(records, clients, key), key


def _grid(records: Records, clients: int, key: str) -> Grid:
    grid = np.full((clients, len(records)), np.nan)
    for t, record in enumerate(records):
        row: Sequence[float | None] | None = getattr(record, key)
        if row is not None:
            grid[: len(row), t] = [np.nan if v is None else v for v in row]
            if key == "weights":
                grid[:, t] /= max(np.nanmax(grid[:, t], initial=0.0), 1e-300)
    return grid


def mark_grid(records: Records, clients: int) -> Any:
    """(K, rounds): DOT where a client is accused, RING where it is excluded, 0 elsewhere."""
    grid = np.zeros((clients, len(records)), dtype=np.int8)
    for t, record in enumerate(records):
        grid[list(record.accused or ()), t] = DOT
        grid[list(record.excluded), t] = RING
    return grid


def truth_map(records: Records, clients: Sequence[str]) -> Heatmap | None:
    """Who attacked; None if nobody ever did."""
    grid = attack_grid(records, len(clients))
    if not (grid == 1).any():
        return None

    def word(k: int, t: int) -> str:
        return "attacked" if grid[k, t] == 1 else "behaved"

    values = np.where(np.isnan(grid), np.nan, np.where(grid == 1, 0.0, BEHAVED))
    return Heatmap("Who really attacked", "round", "client", clients, _rounds(records), values, word)


def belief_map(records: Records, clients: Sequence[str]) -> Heatmap | None:
    """Which clients the rule believed, accused and excluded; None if it judges none, or weighs all of them alike."""
    belief = belief_grid(records, len(clients))
    if belief is None:
        return None
    grid, key = belief
    marks = mark_grid(records, len(clients))
    if key == "weights" and not marks.any() and np.nanmin(grid, initial=1.0) > 0.999:
        return None
    name = {"honesty": "honesty", "weights": "weight"}[key]

    def word(k: int, t: int) -> str:
        parts = [] if np.isnan(grid[k, t]) else [f"{name} {grid[k, t]:.2f}"]
        if marks[k, t] == DOT:
            parts.append("accused")
        elif marks[k, t] == RING:
            why = records[t].reasons.get(clients[k])
            parts.append(f"excluded: {why}" if why else "excluded")
        return ", ".join(parts)

    return Heatmap(BELIEF[key], "round", "client", clients, _rounds(records), grid, word, marks)


def weight_map(records: Records, clients: Sequence[str]) -> Heatmap | None:
    """Weights, to be shown beside honesty; None unless a client was believed and still had a small weight.

    The default rule shortens the updates of clients that are far away without accusing them. Honesty alone would
    suggest that such a client has full influence.
    """
    if belief_of(records) != "honesty":
        return None
    honesty, weights = _grid(records, len(clients), "honesty"), _grid(records, len(clients), "weights")
    if not ((honesty > SHORTENED) & (weights < SHORTENED)).any():
        return None

    def word(k: int, t: int) -> str:
        return "" if np.isnan(weights[k, t]) else f"weight {weights[k, t]:.2f} of the largest"

    return Heatmap(BELIEF["weights"], "round", "client", clients, _rounds(records), weights, word)


def key_words(maps: Sequence[Heatmap], belief: str | None) -> tuple[str, str]:
    """What orange and blue mean in the maps of a run whose rule says `belief` about its clients."""
    if belief is None:
        return "attacked", "behaved"
    if belief != "honesty":
        return "attacked, or weight 0", "behaved, or full weight"
    weighed = any(one.title == BELIEF["weights"] for one in maps)
    return ("lies, or weight 0", "honest, or full weight") if weighed else ("lies", "honest")


def _rounds(records: Records) -> list[int]:
    return [r.round for r in records]


def curve(records: Records, key: str) -> tuple[list[int], list[float]]:
    """The rounds in which a number was measured, and the number."""
    pairs = [(r.round, float(getattr(r, key))) for r in records if getattr(r, key) is not None]
    return [t for t, _ in pairs], [v for _, v in pairs]


def over_rounds(title: str, runs: Sequence[tuple[str, Records]], key: str) -> Chart:
    """A number between 0 and 1 over the rounds, of one run or several."""
    lines = [Line(name, *curve(records, key)) for name, records in runs]
    lines = [line for line in lines if line.xs]
    last = max((t for line in lines for t in line.xs), default=1)
    return Chart(title, "round", title, lines, xlim=(1, max(last, 2)), ends=True)
