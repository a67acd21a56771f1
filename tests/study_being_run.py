"""A study with synthetic numbers, written through the real store, with as many runs as a test needs."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

from honestly.runs.store import PlannedRun, Store, compact
from honestly.sim.summary import summary

RULES = ("FedAvg", "Median", "Ours")
ATTACKS = ("sign_flip", "backdoor")


def record(t: int, *, clients: int = 6, seed: int = 0, rule: str = "Ours", attack: str = "backdoor") -> dict[str, Any]:
    """A round as the simulator writes it; the last two clients attack."""
    rng = random.Random(f"{seed} {t} {rule}")
    bad = [clients - 2, clients - 1]
    judges = rule == "Ours"
    honesty = [round(rng.uniform(0, 0.2) if k in bad else rng.uniform(0.9, 1), 6) for k in range(clients)]
    return {
        "round": t, "accuracy": round(0.9 - 0.8 * 0.8**t, 6), "loss": 0.5, "attacked": bad,
        "asr": 0.05 if attack == "backdoor" else None, "honesty": honesty if judges else None, "weights": None,
        "excluded": [], "reasons": {}, "malicious_estimate": 2.0 if judges else None,
        "accused": bad if judges else None,
        "false_accusations": 0 if judges else None, "misses": 0 if judges else None, "per_class": [0.9] * 10,
        "participants": list(range(clients)), "status": "converged", "steps": 5, "train_loss": 0.4,
    }  # fmt: skip


class FakeStudy:
    """Rules against attacks over seeds; `advance` does some rounds of a run, `finish` all that are left."""

    def __init__(
        self, folder: Path, *, rounds: int = 10, rules: tuple[str, ...] = RULES, attacks: tuple[str, ...] = ATTACKS,
        seeds: int = 1, clients: int = 6, more: dict[str, tuple[Any, ...]] | None = None,
    ) -> None:  # fmt: skip
        self.store = Store.open(folder)
        self.clients = clients
        axes = {**(more or {}), "attack": attacks, "rule": rules, "seed": tuple(range(seeds))}
        self.entries: list[PlannedRun] = []
        for values in itertools.product(*axes.values()):
            cell = dict(zip(axes, values, strict=True))
            experiment = compact({"clients": clients, "rounds": rounds, **cell})
            self.entries.append(PlannedRun(f"run-{len(self.entries):04d}", cell, experiment, rounds))
        self.store.set_meta(name="invented")
        self.store.add(self.entries)

    def ids(self) -> list[str]:
        return [entry.id for entry in self.entries]

    def advance(self, id: str, rounds: int, *, worker: str = "one") -> None:
        run = self.store.run(id)
        if run.status != "running":
            assert self.store.claim(worker, among=[id]) is not None
        c = run.cell
        for t in range(run.rounds + 1, run.rounds + rounds + 1):
            found = record(t, clients=self.clients, seed=c["seed"], rule=c["rule"], attack=c["attack"])
            self.store.write_round(id, found, {"train": 0.1})

    def finish(self, id: str) -> None:
        run = self.store.run(id)
        self.advance(id, run.of - run.rounds)
        self.store.finish(id, summary(self.store.rounds(id)), {"version": "0"})

    def close(self) -> None:
        self.store.close()
