"""Measure rules in training under attacks from 2022 to 2026: python benchmarks/newer_attacks.py [--json FILE].

Digits, 20 clients of which 8 lie, unequal data (alpha 0.5), three seeds. Untargeted attacks are measured by the
accuracy, and backdoors by the attack success rate (and the accuracy). Each figure is the mean over the last five rounds
and the seeds, with the lowest and the highest seed. After the semicolon, each cell has the numbers of liars and of
honest clients that were accused (or got no weight) per round. Training is that of `honestly simulate`, so every row can
be reproduced with that command. With --json, cases that the file already has are not run again; --page writes the table
to docs/results/newer-attacks.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from code_version import commit, commits
from machines import processor

from honestly.show.tables import fill
from honestly.sim.data import Dataset, load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation

PAGE = Path(__file__).parents[1] / "docs" / "results" / "newer-attacks.md"
ATTACKS = (
    "none", "sign_flip", "alie", "backdoor",
    "poisoned_fl", "xfed", "hybrid_sparse", "sensitivity_curve", "neurotoxin", "critical_layers", "a3fl", "iba",
    "chameleon", "three_d_fed", "dark_fed",
)  # fmt: skip
RULES = ("mean", "bayesian", "multi_krum", "align_ins", "deep_sight")
TOLD = {"multi_krum", "que", "trimmed_mean", "krum", "dnc", "caf"}


def choice(rule: str, liars: int) -> Any:
    """The settings of a rule, with the true number of attackers as f if it needs f."""
    return {"name": rule, "f": liars} if rule in TOLD else rule


def run(data: Dataset, attack: str, rule: str, seed: int, *, clients: int, liars: int, rounds: int) -> dict[str, Any]:
    """The last five rounds of one run, and all its accusations."""
    values = {
        "clients": clients, "malicious": 0 if attack == "none" else liars, "rounds": rounds, "attack": attack,
        "rule": choice(rule, liars), "seed": seed,
    }  # fmt: skip
    records = [record.numbers for record in Federation(Experiment.of(values), data=data).rounds()]
    last = records[-5:]
    rates = [r["asr"] for r in last if r["asr"] is not None]
    blamed = [r for r in records if r["accused"] is not None]
    return {
        "attack": attack,
        "rule": rule,
        "seed": seed,
        "commit": commit(),
        "accuracy": float(np.mean([r["accuracy"] for r in last])),
        "asr": float(np.mean(rates)) if rates else None,
        "found": float(np.mean([len(r["attacked"]) - r["misses"] for r in blamed])) if blamed else None,
        "falsely": float(np.mean([r["false_accusations"] for r in blamed])) if blamed else None,
    }


def table(cases: list[dict[str, Any]], attacks: Iterable[str], rules: Iterable[str]) -> str:
    """A Markdown table: accuracy (or success of the backdoor / accuracy), and liars found + honest clients accused."""
    rules = list(rules)
    lines = ["| attack | " + " | ".join(rules) + " |", "|---|" + "---|" * len(rules)]
    for attack in attacks:
        cells: list[str] = []
        for rule in rules:
            results = [c for c in cases if c["attack"] == attack and c["rule"] == rule]
            cells.append(cell(results) if results else "-")
        lines.append(f"| `{attack}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(results: list[dict[str, Any]]) -> str:
    """One cell of the table."""

    def mean(key: str) -> float | None:
        values = [c[key] for c in results if c[key] is not None]
        return float(np.mean(values)) if values else None

    def range_of(key: str) -> str:
        values = [f"{c[key]:.2f}" for c in results]
        low, high = min(values), max(values)
        return "" if low == high else f" [{low}, {high}]"

    accuracy, rate, caught, falsely = (mean(key) for key in ("accuracy", "asr", "found", "falsely"))
    if rate is None:
        text = f"{accuracy:.2f}{range_of('accuracy')}"
    else:
        text = f"ASR {rate:.2f}{range_of('asr')} ({accuracy:.2f})"
    return text if caught is None else f"{text}; {caught:.1f} + {falsely:.1f}"


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--liars", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write every case here, and skip those that it already has")
    parser.add_argument("--page", action="store_true", help="also write the table to the page of the documentation")
    args = parser.parse_args()
    data, cases = load("digits"), list[dict[str, Any]]()
    if args.json is not None and args.json.exists():
        cases = json.loads(args.json.read_text())["cases"]
    known = {(c["attack"], c["rule"], c["seed"]) for c in cases}
    size = {"clients": args.clients, "liars": args.liars, "rounds": args.rounds}
    for rule in args.rules:
        for attack in args.attacks:
            for seed in args.seeds:
                if (attack, rule, seed) in known:
                    continue
                cases.append(run(data, attack, rule, seed, **size))
                print(json.dumps(cases[-1]), flush=True)
                if args.json is not None:
                    machine = f"{processor()}, {os.cpu_count()} cores"
                    args.json.write_text(json.dumps({"machine": machine, "cases": cases}, indent=1) + "\n")
    text = table(cases, args.attacks, args.rules)
    print(f"\n{text}")
    if args.page:
        PAGE.write_text(fill(PAGE.read_text(), {"attacks": f"{commits(cases)}\n\n{text}"}))


if __name__ == "__main__":
    main()
