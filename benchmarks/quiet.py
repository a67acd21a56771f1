"""Honest clients that the default rule accuses where nobody lies: digits, 20 clients, 40 rounds.

python benchmarks/quiet.py [--seeds 4] [--rounds 40]        20 seconds on one core
"""

import argparse

from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    for seed in range(options.seeds):
        experiment = Experiment.of({"dataset": "digits", "clients": 20, "rounds": options.rounds, "seed": seed})
        records = [record.numbers for record in Federation(experiment).rounds()]
        accused = [len(record["accused"]) for record in records]
        per_round = sum(accused) / len(accused)
        print(f"seed {seed}: {per_round:.3f} accused per round, at most {max(accused)}; {records[-1]['accuracy']:.3f}")


if __name__ == "__main__":
    main()
