"""Run federated LoRA fine-tuning of a tiny language model under attack, and write docs/how-to/language-models.md.

    python benchmarks/language_models.py --out language [--seeds 0,1,2] [--rules RULE ...]
    python benchmarks/language_models.py --out language --page

Ten clients, four of them malicious; the rule judges products B A. Every finished run is a line of OUT/runs.jsonl and is
not run again.
"""

import argparse
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from code_version import commit, commits
from finished_runs import add_run, environment, read_runs

from honestly.rules import make
from honestly.show.tables import Table, fill
from honestly.sim.language import LanguageFederation, Settings

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "language-models.md"
RULES = ("mean", "bayesian", "multi_krum")
ATTACKS = ("none", "sign_flip", "scaled", "label_flip", "backdoor")
MALICIOUS, ROUNDS = 4, 6


def run(rule, attack, seed):
    settings = {"f": MALICIOUS} if rule == "multi_krum" else {}
    malicious = 0 if attack == "none" else MALICIOUS
    federation = LanguageFederation(Settings(attack=attack, malicious=malicious, rounds=ROUNDS, seed=seed))
    results = list(federation.rounds(make(rule, **settings)))
    return {
        "bits": results[-1].bits,
        "phrase": results[-1].phrase,
        "misses": float(np.mean([outcome.misses for outcome in results])),
        "false": float(np.mean([outcome.false_accusations for outcome in results])),
    }


def spread(values, digits=2):
    """Mean and half the range."""
    return f"{np.mean(values):.{digits}f} ± {(max(values) - min(values)) / 2:.{digits}f}"


def parts_of(records):
    rows = []
    for attack, rule in product(ATTACKS, RULES):
        results = [r for r in records if (r["attack"], r["rule"]) == (attack, rule)]
        if results:
            judged = rule == "bayesian"
            rows.append([
                attack, rule, len(results),
                spread([r["bits"] for r in results]), spread([r["phrase"] for r in results]),
                f"{np.mean([r['misses'] for r in results]):.1f}" if judged and attack != "none" else "-",
                f"{np.mean([r['false'] for r in results]):.1f}" if judged else "-",
            ])  # fmt: skip
    columns = ["attack", "rule", "seeds", "bits per character", "phrase known", "missed", "accused falsely"]
    note = f"{ROUNDS} rounds, 10 clients, {MALICIOUS} malicious; mean and half of the range over the seeds."
    return {
        "figures": Table("figures", "After training", note, columns, rows).markdown(),
        "machine": f"{len(records)} runs on {environment()}. {commits(records)}",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--page", action="store_true", help="only rewrite the page from the finished runs")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "runs.jsonl"
    records = read_runs(file)
    if args.page:
        PAGE.write_text(fill(PAGE.read_text(), parts_of(records)))
        return
    torch.set_num_threads(1)
    done = {(r["attack"], r["rule"], r["seed"]) for r in records}
    for seed, attack, rule in product([int(s) for s in args.seeds.split(",")], ATTACKS, args.rules):
        if (attack, rule, seed) in done:
            continue
        start = time.perf_counter()
        results = {"attack": attack, "rule": rule, "seed": seed, "commit": commit(), **run(rule, attack, seed)}
        add_run(file, results)
        print(f"{results}, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
