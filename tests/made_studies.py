"""Synthetic studies for the tests: records like the simulator's, numbers like the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from honestly.runs.store import PlannedRun, Run, Store
from honestly.show.report.published import Column, Key, published_numbers
from honestly.sim.summary import summary
from honestly.studies.study import Study, text_of

SAYS = {"bayesian": "honesty", "multi_krum": "weights", "mean": "weights", "geometric_median": "weights"}


def record(
    round: int, *, rule: str = "bayesian", K: int = 20, M: int = 8, accuracy: float = 0.9, asr: float | None = None,
    dynamic: bool = False, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """A round as the simulator writes it; the rule sees most of the attackers."""
    rng = np.random.default_rng([seed, round])
    bad = list(range(K - M, K))
    attacked = sorted(rng.choice(bad, int(rng.integers(0, M + 1)), replace=False).tolist()) if dynamic and M else bad
    belief = np.ones(K)
    if SAYS.get(rule) and rule not in ("mean",):
        belief[attacked] = 0.0
        noisy = rng.random(K) < 0.05
        belief[noisy] = rng.random(int(noisy.sum())).round(3)
    honesty = belief.tolist() if rule == "bayesian" else None
    weights = (belief / max(belief.sum(), 1e-9)).tolist() if SAYS.get(rule) else None
    accused = [k for k in range(K) if belief[k] < 0.5] if SAYS.get(rule) else None
    wrong = None if accused is None else len(set(accused) - set(attacked))
    missed = None if accused is None else len(set(attacked) - set(accused))
    return {
        "round": round, "accuracy": accuracy, "loss": 0.3, "asr": asr, "attacked": attacked, "honesty": honesty,
        "weights": weights, "excluded": [], "reasons": {}, "malicious_estimate": None, "accused": accused,
        "false_accusations": wrong, "misses": missed, "per_class": [0.9] * 10, "participants": list(range(K)),
        "status": "converged", "steps": 5, "train_loss": 0.2,
    }  # fmt: skip


def rounds_of(
    cell: dict[str, Any], experiment: dict[str, Any], n: int, shift: float = 0.0, *, level: bool = False
) -> list[dict[str, Any]]:
    """Rounds that end in the published numbers of the cell, plus `shift`; `level` starts there, too."""
    rule = experiment["rule"]["name"]
    rng = np.random.default_rng(int(cell.get("seed", 0)))

    def number(metric: str) -> float | None:
        try:
            name = "Ours" if str(cell["rule"]).startswith("Ours") else cell["rule"]
            where = Key(cell["dataset"], cell["config"], name, Column(cell["attack"], cell["alpha"], metric))
            return published_numbers().get(where)
        except KeyError:
            return 0.8 if metric == "ACC" else (0.1 if cell.get("attack") == "backdoor" else None)

    accuracy, asr = number("ACC"), number("ASR")
    found: list[dict[str, Any]] = []
    for t in range(1, n + 1):
        grow = 1.0 if level else 1 - 0.8 * np.exp(-9 * t / n)
        clip = lambda v: float(min(max(v, 0.0), 1.0))  # noqa: E731
        found.append(
            record(
                t, rule=rule, K=int(experiment["clients"]), M=malicious(experiment), dynamic=experiment["dynamic"],
                accuracy=clip((accuracy or 0.5) * grow + shift + 0.002 * rng.normal()),
                asr=None if asr is None else clip(asr + 0.002 * rng.normal()), seed=int(cell.get("seed", 0)),
            )
        )  # fmt: skip
    return found


def malicious(experiment: dict[str, Any]) -> int:
    """How many clients are malicious."""
    given = float(experiment["malicious"])
    return int(given) if given >= 1 else round(given * int(experiment["clients"]))


def fill(
    folder: Path,
    study: str,
    *,
    rounds: int = 3,
    skip: Any = lambda entry: False,
    shift: Any = lambda cell: 0.0,
    level: bool = False,
) -> Store:
    """A store of a shipped study with made-up rounds; entries that `skip` chooses stay pending."""
    text = text_of(study)
    store = Store.open(folder)
    entries = Study.parse(text).entries()
    store.add(entries)
    store.set_meta(name=study, study=text)
    for entry in entries:
        if not skip(entry):
            finish(store, entry, rounds, shift(entry.cell), level=level)
    return store


def finish(store: Store, entry: PlannedRun | Run, rounds: int, shift: float = 0.0, *, level: bool = False) -> None:
    """Give a run its rounds and mark it as done."""
    experiment = json.loads(entry.experiment) if isinstance(entry.experiment, str) else entry.experiment
    records = rounds_of(entry.cell, experiment, rounds, shift, level=level)
    store.write_rounds(entry.id, records, [{"train": 0.1}] * len(records))
    made = {"version": "0.1.0", "commit": "abc", "device": "cpu", "torch": "2", "python": "3.11", "seed": 0}
    store.finish(entry.id, summary(records), made)
