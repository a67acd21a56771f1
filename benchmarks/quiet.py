"""What a rule costs when nobody lies: honest clients accused, and accuracy beside that of the plain mean.

python benchmarks/quiet.py [--seeds 4] [--rounds 40] [--rules bayesian,mean] [key=value ...]     10 seconds per run
python benchmarks/quiet.py --seeds 1 --rounds 100 dataset=mnist model=lenet5 alpha=0.1

20 clients, digits by default. The accuracy is the mean of the last 10 rounds; differences are those of equal seeds.
"""

import argparse
from statistics import mean, stdev

from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation

LAST = 10  # rounds whose accuracy is averaged


def run(settings):
    """(accused per round, the most in one round, accuracy) of a federation in which nobody lies."""
    accused, accuracies = [], []
    for record in Federation(Experiment.of(settings)).rounds():
        accused.append(len(record.numbers["accused"] or ()))
        accuracies.append(record.numbers["accuracy"])
    return mean(accused), max(accused), mean(accuracies[-LAST:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--rules", default="bayesian", help="separated by semicolons, as `honestly simulate` takes them"
    )
    parser.add_argument("changes", nargs="*", metavar="key=value", help="as `honestly simulate` takes them")
    options = parser.parse_args()
    changes = dict(change.split("=", 1) for change in options.changes)
    if "alpha" in changes:
        changes["alpha"] = float(changes["alpha"])
    accuracies = {rule: [] for rule in options.rules.split(";")}
    for seed in range(options.seeds):
        for rule, reached in accuracies.items():
            settings = {"dataset": "digits", "clients": 20, "rounds": options.rounds, "seed": seed, **changes}
            per_round, most, accuracy = run({**settings, "rule": rule})
            reached.append(accuracy)
            print(
                f"seed {seed}, {rule}: {per_round:.3f} accused per round, at most {most}; accuracy {accuracy:.4f}",
                flush=True,
            )
    for rule, reached in accuracies.items():
        if rule != "mean" and "mean" in accuracies and options.seeds > 1:
            apart = [a - b for a, b in zip(reached, accuracies["mean"], strict=True)]
            print(f"{rule} minus mean: {mean(apart):+.4f} (standard deviation over seeds {stdev(apart):.4f})")


if __name__ == "__main__":
    main()
