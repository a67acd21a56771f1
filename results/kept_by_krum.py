"""Whom Krum keeps under label flip on CIFAR-10, beside how many classes each client has.

    HONESTLY_DATA=... python results/kept_by_krum.py      # after `make results`, which unpacks the stores

The classes of a client are counted by the exponential of the entropy of their shares: 10 if all are equally frequent.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from honestly.runs.store import Store
from honestly.sim.data import load
from honestly.sim.partition import partition
from honestly.sim.seeds import generator

STORE = Path(__file__).parent.parent / "build" / "results" / "cifar"
CLIENTS, ALPHA, SEED = 20, 0.5, 0


def classes() -> list[float]:
    """How many classes each client has, in effect."""
    labels = load("cifar10").labels
    result = []
    for part in partition(labels, CLIENTS, kind="balanced", alpha=ALPHA, rng=generator(SEED, "partition")):
        counts = np.bincount(labels[part])
        shares = counts[counts > 0] / len(part)
        result.append(float(np.exp(-(shares * np.log(shares)).sum())))
    return result


def rounds_kept(config: int) -> tuple[Counter[int], set[int], int]:
    """In how many rounds each client was kept; who attacked; the number of rounds."""
    cell = {"rule": "Krum", "attack": "label_flip", "alpha": ALPHA, "config": config, "seed": SEED}
    with Store.read(STORE) as store:
        (run,) = [run for run in store.runs() if cell.items() <= run.cell.items()]
        records = store.rounds(run.id)
    times = Counter(client for record in records for client, weight in enumerate(record["weights"]) if weight > 0)
    return times, set().union(*(record["attacked"] for record in records)), len(records)


def main() -> None:
    """Print a table, the clients with the fewest classes first."""
    number, runs = classes(), [rounds_kept(config) for config in (1, 2)]
    heads = [f"kept in {rounds} rounds, {len(liars)} lie" for _, liars, rounds in runs]
    print(f"| client | classes | {' | '.join(heads)} |\n|---:|---:|---:|---:|")
    for client in np.argsort(number):
        cells = [f"{times[int(client)]}{' (lies)' * (client in liars)}" for times, liars, _ in runs]
        print(f"| {client} | {number[client]:.1f} | {' | '.join(cells)} |")
    for times, liars, _ in runs:
        honest = [client for client in range(CLIENTS) if client not in liars]
        for who, group in (("honest", honest), ("lying", sorted(liars))):
            r = np.corrcoef([number[c] for c in group], [times[c] for c in group])[0, 1]
            print(f"correlation of classes and rounds, {len(group)} {who} clients: {r:.2f}")


if __name__ == "__main__":
    main()
