"""Optimise a backdoor over several rounds so it stays believed, and measure its success against each rule.

    python benchmarks/believed_backdoor.py --out campaigns [--tries 16] [--seeds 0,1,2] [--rules RULE ...]
    python benchmarks/believed_backdoor.py --out campaigns --page

Digits, the small convolutional network, 10 clients, 3 of them malicious, starting after ten rounds without attack.
Every finished search is a line of OUT/campaigns.jsonl and is not run again. The page is docs/results/adaptive.md.
"""

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from code_version import commit, commits
from finished_runs import add_run, environment, read_runs

from honestly.show.tables import Table, fill
from honestly.sim.data import Dataset, load
from honestly.sim.experiment import Experiment
from honestly.studies.campaign import Campaign, CampaignResult, Policy, describe
from honestly.studies.specs import Contestant

PAGE = Path(__file__).parents[1] / "docs" / "results" / "adaptive.md"
RULES = (
    *("bayesian", "bayesian:variant=paper", "geometric_median", "multi_krum", "nnm+geometric_median", "median", "mean"),
    *("align_ins", "lasa", "rflbat", "deep_sight", "rlr", "freq_fed", "dnc", "sign_guard", "que"),
    *("rodiloco", "flame", "trimmed_mean", "centered_clipping", "foolsgold"),
)
MALICIOUS, ROUNDS, WARM_UP = 3, 6, 10


def campaign(rule: str, seed: int, data: Dataset) -> Campaign:
    parts = zip(rule.split("+"), Contestant(rule).parts, strict=True)
    spec = "+".join(f"{word}:f={MALICIOUS}" if "f" in part.needs else word for word, (part, _) in parts)
    settings = {
        "dataset": "digits",
        "model": "cnn",
        "clients": 10,
        "rounds": ROUNDS,
        "warm_up": WARM_UP,
        "seed": seed,
        "alpha": 1.0,
    }
    settings |= {"attack": "backdoor", "malicious": MALICIOUS, "rule": spec}
    return Campaign(Experiment.of(settings), data=data)


def entry(course: CampaignResult):
    return {"asr": course.asr, "accuracy": course.accuracy, "accused": course.accused, "used": course.used}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tries", type=int, default=16)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--page", action="store_true", help="only rewrite the page from the finished searches")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "campaigns.jsonl"
    records = read_runs(file)
    if args.page:
        PAGE.write_text(fill(PAGE.read_text(), parts_of(records)))
        return
    torch.set_num_threads(1)
    data, done = load("digits"), {(r["rule"], r["seed"], r["tries"]) for r in records}
    rules: list[str] = args.rules
    for rule, seed in ((rule, int(seed)) for seed, rule in product(args.seeds.split(","), rules)):
        if (rule, seed, args.tries) in done:
            continue
        start = time.perf_counter()
        one = campaign(rule, seed, data)
        plain = one.run(Policy(1.0, np.ones(one.L), believed=False))
        none = one.run(Policy(0.0, np.ones(one.L), believed=False))
        best = one.search(args.tries, np.random.default_rng([seed, *rule.encode()])).best
        results = {"rule": rule, "seed": seed, "tries": args.tries, "commit": commit()}
        results |= {"none": entry(none), "plain": entry(plain)}
        results |= {"best": entry(best), "policy": describe(best.policy, one.federation.layers)}
        add_run(file, results)
        print(f"{rule} s{seed}: {results}, {time.perf_counter() - start:.0f} s", flush=True)


def worse_of(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the plain backdoor as the best policy, if the search found none that succeeds more often."""
    plain = record["plain"]
    if plain["accuracy"] < 0.5 or plain["asr"] <= record["best"]["asr"]:
        return record
    return {**record, "best": plain, "policy": "the plain backdoor"}


def parts_of(records: list[dict[str, Any]]):
    """A row for each rule: attack success without an attack, of the plain backdoor, and of the worst policy."""
    rows = []
    for rule in RULES:
        of_rule = [r for r in records if r["rule"] == rule]
        of_rule = [worse_of(r) for r in of_rule]
        if of_rule:
            worst = max(of_rule, key=lambda r: r["best"]["asr"])
            mean = {kind: float(np.mean([r[kind]["asr"] for r in of_rule])) for kind in ("none", "plain", "best")}
            accuracy = float(np.mean([r["best"]["accuracy"] for r in of_rule]))
            accused = float(np.mean([r["best"]["accused"] for r in of_rule]))
            seeds = len({r["seed"] for r in of_rule})
            rows.append([rule, seeds, *mean.values(), worst["best"]["asr"], accuracy, accused, worst["policy"]])
    columns = ["rule", "seeds", "honest", "plain", "optimised", "worst seed", "accuracy", "accused", "worst policy"]
    tries = sorted({r["tries"] for r in records})
    return {
        "campaigns": Table("c", "Attack success after six rounds", "", columns, rows).markdown(),
        "tries": f"{', '.join(map(str, tries))} policies were tried against each rule and seed.",
        "machine": f"{environment()}. {commits(records)}",
    }


if __name__ == "__main__":
    main()
