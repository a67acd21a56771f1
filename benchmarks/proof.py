"""Run the paper's setting for each rule and attack with several seeds, and write the table of the documentation.

    HONESTLY_DATA=... python benchmarks/proof.py run --device cuda --out proof.json --limit 540
    python benchmarks/proof.py table proof.json > docs/results/simulation-results.md

Fashion-MNIST, LeNet-5, 20 clients, balanced Dirichlet(0.5), 8 malicious, 30 rounds of 10 local epochs. Runs are
ordered by seed, so the seeds finished before --limit are complete; `run` continues where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from statistics import fmean, stdev

ROUNDS = 30
RULES = {
    "mean (FedAvg)": {"name": "mean"},
    "multi-Krum, told f = 8": {"name": "multi_krum", "f": 8},
    "Bayesian, the paper's": {"name": "bayesian", "variant": "paper", "scale_free": False},
    "Bayesian, the paper's, scale-free": {"name": "bayesian", "variant": "paper", "scale_free": True},
    "Bayesian (default)": {"name": "bayesian"},
}
ATTACKS = ("none", "sign_flip", "random", "label_flip", "backdoor")


def run(args: argparse.Namespace) -> None:
    import torch

    from honestly.sim.data import load
    from honestly.sim.experiment import Experiment
    from honestly.sim.rounds import Federation
    from honestly.sim.summary import summary

    beginning = time.perf_counter()
    results = json.loads(args.out.read_text()) if args.out.exists() else {"runs": []}
    results["machine"] = torch.cuda.get_device_name() if args.device != "cpu" else platform.processor()
    results["torch"] = torch.__version__
    done = {(r["rule"], r["attack"], r["seed"]) for r in results["runs"]}
    data = load(args.dataset)
    for seed in range(args.seeds):
        for attack in ATTACKS:
            for rule, choice in RULES.items():
                if (rule, attack, seed) in done:
                    continue
                if time.perf_counter() - beginning > args.limit:
                    print("stopped by --limit; run the same command to continue", flush=True)
                    return
                e = Experiment.of(
                    {
                        "dataset": args.dataset, "rounds": args.rounds, "rule": choice, "attack": attack, "seed": seed,
                        "malicious": 0 if attack == "none" else 0.4,
                    }
                )  # fmt: skip
                start = time.perf_counter()
                federation = Federation(e, data=data, device=args.device)
                records = [r.numbers for r in federation.rounds()]
                seconds = time.perf_counter() - start
                outcomes = {
                    "rule": rule, "attack": attack, "seed": seed, "id": e.id, "seconds": seconds, **summary(records),
                    "accuracy": [r["accuracy"] for r in records], "asr": [r["asr"] for r in records],
                }  # fmt: skip
                results["runs"].append(outcomes)
                args.out.write_text(json.dumps(results))
                accuracy = outcomes["accuracy_mean_last_20"]
                print(f"{rule:36} {attack:10} seed {seed}: {accuracy:.4f}  {seconds:.1f} s", flush=True)
                del federation


def spread(values: list[float | None], digits: int = 3) -> str:
    numbers = [v for v in values if v is not None]
    if not numbers:
        return "–"
    text = f"{fmean(numbers):.{digits}f}"
    return text + (f" ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else "")


def table(args: argparse.Namespace) -> None:
    results = json.loads(args.file.read_text())
    runs = results["runs"]
    seeds = sorted({r["seed"] for r in runs})
    rules = [rule for rule in RULES if any(run["rule"] == rule for run in runs)]
    every = [(rule, attack) for rule in rules for attack in ATTACKS]
    seeds = [s for s in seeds if all(any((r["rule"], r["attack"], r["seed"]) == (*e, s) for r in runs) for e in every)]
    runs = [r for r in runs if r["seed"] in seeds]
    rounds = max(r["rounds"] for r in runs)

    def cells(key: str, rule: str, attack: str) -> list[float | None]:
        return [r[key] for r in runs if r["rule"] == rule and r["attack"] == attack]

    print("# What the rules do under the paper's attacks\n")
    print(
        f"Fashion-MNIST, LeNet-5, 20 clients, balanced Dirichlet(0.5), 8 of 20 malicious (none: 0), {rounds} "
        f"rounds of 10 local epochs. Test accuracy, mean of the last 20 rounds; mean ± standard deviation over the "
        f"seeds {', '.join(map(str, seeds))}. Made by `benchmarks/proof.py` on one {results['machine']} "
        f"(PyTorch {results['torch']}), {fmean([r['seconds'] for r in runs]):.1f} s per run.\n"
    )
    names = ["no attack", "sign flip", "random", "label flip", "backdoor", "ASR of the backdoor"]
    print("| rule | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for rule in rules:
        row = [spread(cells("accuracy_mean_last_20", rule, attack)) for attack in ATTACKS]
        print(f"| {rule} | " + " | ".join([*row, spread(cells("asr_mean_last_20", rule, "backdoor"))]) + " |")
    print(
        "\nHonest clients accused / attackers missed per round (mean over the seeds; a client counts as accused when it"
    )
    print("is less than half as honest as the most honest one, or when its weight is 0):\n")
    print("| rule | " + " | ".join(names[:-1]) + " |")
    print("|---" * len(names) + "|")
    for rule in rules:
        row = []
        for attack in ATTACKS:
            wrong, missed = (
                spread([fmean([v for v in cells(k, rule, attack) if v is not None] or [0.0])], 1)
                for k in ("false_accusations_per_round", "misses_per_round")
            )
            row.append(f"{wrong} / {missed}")
        print(f"| {rule} | " + " | ".join(row) + " |")
    print("\nImages are padded, which is the [reading](paper.md#two-readings) of the paper's text.", end="")
    absent = [rule for rule in RULES if rule not in rules]
    if absent:
        print(f" Not run here, but in [the paper's tables](paper.md#measured): {', '.join(absent)}.", end="")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--device", default="cpu")
    runner.add_argument("--dataset", default="fmnist")
    runner.add_argument("--rounds", type=int, default=ROUNDS)
    runner.add_argument("--seeds", type=int, default=3)
    runner.add_argument("--limit", type=float, default=1e9, help="start no run after this many seconds")
    runner.add_argument("--out", type=Path, required=True)
    runner.set_defaults(run=run)
    shower = commands.add_parser("table")
    shower.add_argument("file", type=Path)
    shower.set_defaults(run=table)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
