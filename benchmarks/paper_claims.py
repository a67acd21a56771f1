"""Test some claims of papers at a small scale, on digits: python benchmarks/paper_claims.py [--json FILE].

- durable: Chameleon claims that its backdoors last 1.2 to 4 times as long as others after the attack has stopped, and
  Neurotoxin claims that its backdoors last longer, too. 5 of 20 clients attack in rounds 1 to 15 and are honest
  afterwards; the rule is the mean. Measured: the attack success rate when the attack stops, and its mean over the
  following 45 rounds.
- diloco: RoDiLoCo claims that one worker of eight that sends -10 times its update makes DiLoCo diverge, and that the
  geometric median, centred clipping and trust weights withstand one and two of them. 8 clients, iid, 15 rounds, without
  the outer optimiser.
- alone: XFED claims that a few attackers that do not collude do harm under any rule. 1 and 4 of 20 clients, 20 rounds.

The papers' own models and data (CIFAR-10, TinyStories on a GPU) are not used, so only the order of the numbers can be
compared. With --json, cases that the file already has are not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from honestly.sim.data import Dataset, load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation

STOP, WATCHED = 15, 45
DURABLE = ("backdoor", "neurotoxin", "chameleon")
DILOCO = ("mean", "trimmed_mean:f=1", "krum:f=2", "geometric_median", "centered_clipping", "rodiloco", "bayesian")
ALONE = ("mean", "median", "multi_krum:f=4", "bayesian")


def numbers(data: Dataset, **values: Any) -> list[dict[str, Any]]:
    """The records of one run."""
    return [record.numbers for record in Federation(Experiment.of(values), data=data).rounds()]


def experiments(claim: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs that a claim needs: names of the row and the column, and the settings."""
    twenty = {"clients": 20, "rounds": 20}
    if claim == "durable":
        for attack in DURABLE:
            run = {"malicious": 5, "attack": attack, "rule": "mean", "stop": STOP, "rounds": STOP + WATCHED}
            yield f"{attack}|success", {**twenty, **run}
    elif claim == "diloco":
        for rule in DILOCO:
            for f in (0, 1, 2):
                run = {"clients": 8, "malicious": f, "rounds": 15, "attack": {"name": "sign_flip", "gamma": 10.0}}
                yield f"{rule}|f = {f}", {**run, "rule": rule, "partition": "iid"}
    else:
        for rule in ALONE:
            for M in (0, 1, 4):
                yield f"{rule}|{M} of 20", {**twenty, "malicious": M, "attack": "xfed", "rule": rule}


def measure(claim: str, records: list[dict[str, Any]]) -> dict[str, float]:
    """Success of a backdoor when it stops and afterwards, or accuracy of the last five rounds, by name."""
    if claim == "durable":
        rates = [record["asr"] for record in records]
        return {"at the stop": float(rates[STOP - 1]), "afterwards": float(np.mean(rates[STOP:]))}
    return {"": float(np.mean([record["accuracy"] for record in records[-5:]]))}


def table(claim: str, cases: list[dict[str, Any]]) -> str:
    """A Markdown table: rules or attacks by columns, the mean of the seeds and their range."""
    names = [case["name"].split("|") for case in cases if case["claim"] == claim]
    rows, columns = (list(dict.fromkeys(name[i] for name in names)) for i in (0, 1))
    lines = [f"| {claim} | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        cells: list[str] = []
        for column in columns:
            found = [case["value"] for case in cases if case["name"] == f"{row}|{column}"]
            ends = [f"{x:.2f}" for x in (min(found), max(found))]
            spread = "" if ends[0] == ends[1] else f" [{ends[0]}, {ends[1]}]"
            cells.append(f"{np.mean(found):.2f}{spread}")
        lines.append(f"| `{row}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", nargs="+", default=["durable", "diloco", "alone"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="write every case here, and skip those that it already has")
    args = parser.parse_args()
    data, cases = load("digits"), list[dict[str, Any]]()
    if args.json is not None and args.json.exists():
        cases = json.loads(args.json.read_text())["cases"]
    known = {(case["name"].removesuffix(" at the stop"), case["seed"]) for case in cases}
    for claim in args.claims:
        for name, values in experiments(claim):
            for seed in args.seeds:
                if (name, seed) in known:
                    continue
                for part, value in measure(claim, numbers(data, **values, seed=seed)).items():
                    cases.append({"claim": claim, "name": f"{name} {part}".strip(), "seed": seed, "value": value})
                    print(json.dumps(cases[-1]), flush=True)
                if args.json is not None:
                    args.json.write_text(json.dumps({"cases": cases}, indent=1) + "\n")
    for claim in args.claims:
        print(f"\n{table(claim, cases)}")


if __name__ == "__main__":
    main()
