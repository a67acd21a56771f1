"""Test some claims of papers at a small scale: python benchmarks/paper_claims.py [--claims NAME ...] [--json FILE].

- durable: Chameleon claims that its backdoors last 1.2 to 4 times as long as others after the attack has stopped, and
  Neurotoxin claims that its backdoors last longer, too. 5 of 20 clients attack in rounds 1 to 15 and are honest
  afterwards; the rule is the mean. Measured: the attack success rate when the attack stops, and its mean over the
  following 45 rounds.
- diloco: RoDiLoCo claims that one worker of eight that sends -10 times its update makes DiLoCo diverge, and that the
  geometric median, centred clipping and trust weights withstand one and two of them. 8 clients, iid, 15 rounds, without
  the outer optimiser.
- alone: XFED claims that a few attackers that do not collude do harm under any rule. 1 and 4 of 20 clients, 20 rounds.
- directions: QUE claims that its scores find outliers in several directions where the distance from the mean and the
  main direction alone do not. The paper's synthetic data at a sixteenth of its size: normal points, of which a fifth is
  replaced by tight groups on both sides of 1 to 8 axes, larger by a tenth from axis to axis. Measured: the share of
  outliers among as many of the highest scores.
- reversed: RLR claims that one attacker of ten plants no backdoor, at hardly any cost. 10 clients, 30 rounds.
- detected: FLDetector claims to find the attackers of four attacks, and few others. 5 of 20 clients, 60 rounds of one
  short epoch. Measured: the shares of attackers and of honest clients that are removed, at the first alarm, where the
  authors stop and start again, and at the end.

All but `directions` are tried on digits instead of the papers' own models and data (Fashion-MNIST, CIFAR-10,
TinyStories on a GPU), so only the order of the numbers can be compared. With --json, cases that the file already has
are not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from code_version import commit

from honestly.rules.que import que_scores
from honestly.sim.data import Dataset, load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation

STOP, WATCHED, TWENTY = 15, 45, 20
DURABLE = ("backdoor", "neurotoxin", "chameleon")
DILOCO = ("mean", "trimmed_mean:f=1", "krum:f=2", "geometric_median", "centered_clipping", "rodiloco", "bayesian")
ALONE = ("mean", "median", "multi_krum:f=4", "bayesian")
CLAIMS = ("durable", "diloco", "alone", "directions", "reversed", "detected")
#: Alpha of the scores: 0 is the distance from the mean, a very large one the main direction alone.
SCORES = {"distance from the mean": 0.0, "main direction": 1e6, "QUE, alpha = 4": 4.0}
DETECTED = ("fang_krum", "model_replacement", "dba", "alie")
SPREADS = {"iid": {"partition": "iid"}, "alpha 0.5": {"alpha": 0.5}}


def numbers(data: Dataset, **values: Any) -> list[dict[str, Any]]:
    """The records of one run."""
    return [record.numbers for record in Federation(Experiment.of(values), data=data).rounds()]


def experiments(claim: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs that a claim needs: names of the row and the column, and the settings."""
    twenty = {"clients": TWENTY, "rounds": 20}
    if claim == "durable":
        for attack in DURABLE:
            run = {"malicious": 5, "attack": attack, "rule": "mean", "stop": STOP, "rounds": STOP + WATCHED}
            yield f"{attack}|success", {**twenty, **run}
    elif claim == "diloco":
        for rule in DILOCO:
            for f in (0, 1, 2):
                run = {"clients": 8, "malicious": f, "rounds": 15, "attack": {"name": "sign_flip", "gamma": 10.0}}
                yield f"{rule}|f = {f}", {**run, "rule": rule, "partition": "iid"}
    elif claim == "alone":
        for rule in ALONE:
            for M in (0, 1, 4):
                yield f"{rule}|{M} of 20", {**twenty, "malicious": M, "attack": "xfed", "rule": rule}
    elif claim == "reversed":
        for rule in ("mean", "rlr"):
            for spread, settings in SPREADS.items():
                run = {"clients": 10, "malicious": 1, "attack": "backdoor", "rounds": 30}
                yield f"{rule}|{spread},", {**run, "rule": rule, **settings}
    else:
        for attack in DETECTED:
            for spread, settings in SPREADS.items():
                run = {"malicious": 5, "rule": "fl_detector", "rounds": 60, "epochs": 1, "batch": 32, "momentum": 0.0}
                yield f"{attack}|{spread},", {**twenty, **run, "attack": attack, **settings}


def find_outliers(directions: int, seed: int) -> dict[str, float]:
    """The share of outliers among as many of the highest scores, by the name of the score."""
    rng, d, share = np.random.default_rng(seed), 32, 0.2
    groups: list[Any] = []
    for i in range(directions):
        n = int(32.5 * 1.1**i)
        group = 0.1 * rng.normal(size=(n, d))
        group[:, i * ((d - 1) // directions)] += np.sqrt(directions / share)
        group[n // 2 :] *= -1.0
        groups.append(group)
    outliers = np.concatenate(groups)
    n = len(outliers)
    X = np.concatenate([outliers, rng.normal(size=(int(n * (1.0 - share) / share), d))])
    gram = X @ X.T
    highest = {name: np.argsort(-que_scores(gram, alpha))[:n] for name, alpha in SCORES.items()}
    return {name: float((clients < n).mean()) for name, clients in highest.items()}


def measure(claim: str, records: list[dict[str, Any]]) -> dict[str, float]:
    """What a claim is about, by name; else the accuracy of the last five rounds."""
    if claim == "durable":
        rates = [record["asr"] for record in records]
        return {"at the stop": float(rates[STOP - 1]), "afterwards": float(np.mean(rates[STOP:]))}
    if claim == "reversed":
        return {key: float(np.mean([record[key] for record in records[-5:]])) for key in ("asr", "accuracy")}
    if claim == "detected":
        alarms = [record for record in records if record["accused"]]
        shares: dict[str, float] = {}
        for when, record in (("first", [*alarms, records[-1]][0]), ("end", records[-1])):
            attackers = len(record["attacked"])
            shares[f"{when}, attackers"] = 1.0 - record["misses"] / attackers
            shares[f"{when}, honest"] = record["false_accusations"] / (TWENTY - attackers)
        return shares
    return {"": float(np.mean([record["accuracy"] for record in records[-5:]]))}


def values_of(claim: str, data: Dataset, seed: int, known: set[str]) -> Iterator[tuple[str, float]]:
    """Names and values of the cases of one seed, but for those that are known."""
    if claim == "directions":
        for directions in (1, 2, 4, 8):
            column = f"{directions} direction{'s' if directions > 1 else ''}"
            if any(f"{score}|{column}" not in known for score in SCORES):
                yield from ((f"{score}|{column}", value) for score, value in find_outliers(directions, seed).items())
        return
    for name, settings in experiments(claim):
        if not any(old.startswith(name) for old in known):
            for part, value in measure(claim, numbers(data, **settings, seed=seed)).items():
                yield f"{name} {part}".strip(), value


def table(claim: str, cases: list[dict[str, Any]]) -> str:
    """A Markdown table: rules or attacks by columns, the mean of the seeds and their range."""
    names = [case["name"].split("|") for case in cases if case["claim"] == claim]
    rows, columns = (list(dict.fromkeys(name[i] for name in names)) for i in (0, 1))
    lines = [f"| {claim} | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        cells: list[str] = []
        for column in columns:
            results = [case["value"] for case in cases if case["name"] == f"{row}|{column}"]
            ends = [f"{x:.2f}" for x in (min(results), max(results))]
            spread = "" if ends[0] == ends[1] else f" [{ends[0]}, {ends[1]}]"
            cells.append(f"{np.mean(results):.2f}{spread}")
        lines.append(f"| `{row}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", nargs="+", choices=CLAIMS, default=list(CLAIMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="write every case here, and skip those that it already has")
    args = parser.parse_args()
    data, file = load("digits"), dict[str, Any](cases=[])
    if args.json is not None and args.json.exists():
        file = json.loads(args.json.read_text())
    cases = file["cases"]
    known = {(case["claim"], case["name"], case["seed"]) for case in cases}
    for claim in args.claims:
        for seed in args.seeds:
            for name, value in values_of(claim, data, seed, {name for c, name, s in known if (c, s) == (claim, seed)}):
                cases.append({"claim": claim, "name": name, "seed": seed, "value": value, "commit": commit()})
                print(json.dumps(cases[-1]), flush=True)
                if args.json is not None:
                    args.json.write_text(json.dumps(file, indent=1) + "\n")
    for claim in args.claims:
        print(f"\n{table(claim, cases)}")


if __name__ == "__main__":
    main()
