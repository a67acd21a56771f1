"""Find out which measure of a single round predicts the damage after training, and write docs/results/damage.md.

    python benchmarks/damage.py --out damage [--seeds 0,1] [--models cnn,cnn_norm] [--only TEXT ...]
    python benchmarks/damage.py --out damage --page

Every finished run is a line of OUT/runs.jsonl and is not run again, so the script can be stopped at any time. Damage is
relative to the run of the same model and seed without attack under the plain mean: the accuracy lost or, for a
backdoor, the attack success gained. Rank correlations are Spearman's, over all runs together.
"""

import argparse
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from code_version import commit, commits
from finished_runs import add_run, environment, read_runs

from honestly.show.tables import Table, fill
from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.studies.damage import steps

PAGE = Path(__file__).parents[1] / "docs" / "results" / "damage.md"
RULES = (
    {"name": "mean"},
    {"name": "bayesian"},
    {"name": "bayesian", "variant": "paper"},
    {"name": "geometric_median"},
    {"name": "multi_krum"},
    {"name": "median"},
)
ATTACKS = ("label_flip", "sign_flip", "alie", "ipm", "min_max", "mimic", "gaussian", "backdoor", "model_replacement")
CLIENTS, ROUNDS, COUNTS = 10, 12, (4, 2)
# BatchNorm trains client by client, which is slow: fewer and larger steps
TRAINING = {"cnn_norm": {"epochs": 2, "batch": 32, "lr": 0.1}}


def plans(models, seeds):
    """Every run by its key, starting with the runs without attack, to which the others are compared."""
    for model, seed in product(models, seeds):
        yield f"{model} s{seed} quiet", model, seed, {"name": "mean"}, "none", 0
    for seed, model, M, attack, rule in product(seeds, models, COUNTS, ATTACKS, RULES):
        name = ":".join([rule["name"], *(f"{k}={v}" for k, v in rule.items() if k != "name")])
        yield f"{model} s{seed} {attack} {M} {name}", model, seed, rule, attack, M


def run(model, seed, rule, attack, M, data):
    known_f = {"f": M} if rule["name"] == "multi_krum" else {}
    settings = {"dataset": "digits", "model": model, "clients": CLIENTS, "rounds": ROUNDS, "seed": seed}
    settings |= {"alpha": 1.0, **TRAINING.get(model, {})}
    e = Experiment.of({**settings, "rule": {**rule, **known_f}, "attack": attack, "malicious": M})
    results = list(steps(e, data=data))
    return {
        "accuracy": results[-1].accuracy,
        "asr": results[-1].asr,
        "kappa": [step.kappa for step in results],
        "layer": [step.layer for step in results],
        "missed": [None if step.misses is None or not M else step.misses / M for step in results],
    }


def rank(values):
    """Ranks; ties share their mean rank."""
    values = np.asarray(values, dtype=float)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values))
    for value in np.unique(values):
        same = values == value
        ranks[same] = ranks[same].mean()
    return ranks


def spearman(x, y):
    """Rank correlation; None if one of them is constant."""
    a, b = rank(x), rank(y)
    return None if a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])


def interval(x, y, resamples=2000):
    """The middle 90 % of Spearman's correlation when the runs are resampled with replacement."""
    rng, x, y = np.random.default_rng(0), np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    draws = rng.integers(len(x), size=(resamples, len(x)))
    results = [r for r in (spearman(x[rows], y[rows]) for rows in draws) if r is not None]
    return np.quantile(results, (0.05, 0.95))


def correlation(x, y):
    """Spearman's correlation with its interval, as text."""
    r = spearman(x, y)
    if r is None:
        return None
    low, high = interval(x, y)
    return f"{r:.2f} ({low:.2f} to {high:.2f})"


def median(values):
    return float(np.median([v if v is not None and np.isfinite(v) else 1e12 for v in values]))


MEASURES = {
    "kappa of the whole update, median of the rounds": lambda r: median(r["kappa"]),
    "kappa of the whole update, largest": lambda r: max(r["kappa"]),
    "kappa of the worst layer, median of the rounds": lambda r: median(r["layer"]),
    "kappa of the worst layer, largest": lambda r: max(r["layer"]),
    "share of the attackers missed, mean": lambda r: None if None in r["missed"] else float(np.mean(r["missed"])),
}


def damage_of(record, quiet):
    """Accuracy lost, or attack success gained."""
    lost = quiet["accuracy"] - record["accuracy"]
    return lost if record["asr"] is None else max(record["asr"], lost)


def correlations(records):
    """A row for each measure: over all runs, for untargeted attacks, for backdoors, per model and per seed."""
    quiet = {(r["model"], r["seed"]): r for r in records if r["attack"] == "none"}
    attacked = [r for r in records if r["attack"] != "none" and (r["model"], r["seed"]) in quiet]
    groups = {
        "all": lambda r: True,
        "untargeted": lambda r: r["asr"] is None,
        "backdoors": lambda r: r["asr"] is not None,
        **{
            model: (lambda r, model=model: r["model"] == model) for model in dict.fromkeys(r["model"] for r in attacked)
        },
        **{f"seed {seed}": (lambda r, seed=seed: r["seed"] == seed) for seed in sorted({r["seed"] for r in attacked})},
    }
    rows = []
    for name, measure in MEASURES.items():
        row = [name]
        for chosen in groups.values():
            results = [(measure(r), damage_of(r, quiet[r["model"], r["seed"]])) for r in attacked if chosen(r)]
            results = [(x, y) for x, y in results if x is not None]
            row.append(correlation(*zip(*results, strict=True)) if len(results) > 2 else None)
        rows.append(row)
    count = ["runs", *(sum(chosen(r) for r in attacked) for chosen in groups.values())]
    return ["measure", *groups], [*rows, count], attacked, quiet


def by_attack(attacked, quiet):
    """Damage and both measures for each attack, averaged over rules, seeds and models."""
    rows = []
    for attack in ATTACKS:
        results = [r for r in attacked if r["attack"] == attack]
        if results:
            rows.append(
                [
                    attack,
                    len(results),
                    float(np.mean([damage_of(r, quiet[r["model"], r["seed"]]) for r in results])),
                    float(np.median([median(r["kappa"]) for r in results])),
                    float(np.median([median(r["layer"]) for r in results])),
                ]
            )
    return ["attack", "runs", "damage", "kappa", "kappa, worst layer"], rows


def by_rule(attacked, quiet):
    """Damage under each rule: mean, standard deviation and maximum over the runs."""
    rows = []
    for rule in dict.fromkeys(r["rule"] for r in attacked):
        results = [damage_of(r, quiet[r["model"], r["seed"]]) for r in attacked if r["rule"] == rule]
        rows.append([rule, len(results), float(np.mean(results)), float(np.std(results)), max(results)])
    return ["rule", "runs", "mean damage", "standard deviation", "largest"], sorted(rows, key=lambda row: row[2])


def write_page(records):
    columns, rows, attacked, quiet = correlations(records)
    parts = {
        "correlation": Table(
            "c",
            "Spearman's rank correlation with the damage",
            "In parentheses the middle 90 % if the runs are drawn anew (bootstrap, 2,000 draws).",
            columns,
            rows,
        ).markdown(),
        "attacks": Table("a", "Attacks", "", *by_attack(attacked, quiet)).markdown(),
        "rules": Table("r", "Rules", "", *by_rule(attacked, quiet)).markdown(),
        "machine": f"{len(attacked)} attacked runs and {len(quiet)} quiet ones, on {environment()}. "
        f"{commits(attacked)}",
    }
    PAGE.write_text(fill(PAGE.read_text(), parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="cnn,cnn_norm")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="only runs whose key contains one of these"
    )
    parser.add_argument("--page", action="store_true", help="only rewrite the page from the finished runs")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "runs.jsonl"
    records = read_runs(file)
    if args.page:
        write_page(records)
        return
    torch.set_num_threads(1)
    data, done = load("digits"), {record["key"] for record in records}
    todo = list(plans(args.models.split(","), [int(seed) for seed in args.seeds.split(",")]))
    for number, (key, model, seed, rule, attack, M) in enumerate(todo, start=1):
        if key in done or not (key.endswith("quiet") or any(word in key for word in args.only)):
            continue
        start = time.perf_counter()
        result = run(model, seed, rule, attack, M, data)
        name = ":".join([rule["name"], *(f"{k}={v}" for k, v in rule.items() if k != "name")])
        known = {"key": key, "model": model, "seed": seed, "rule": name, "attack": attack, "malicious": M}
        add_run(file, {**known, "commit": commit(), **result})
        print(f"{number} of {len(todo)}, {key}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
