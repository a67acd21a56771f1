"""Count the honest clients that the default rule accuses when nobody lies: 20 clients, digits by default.

python benchmarks/quiet.py [--seeds 4] [--rounds 40] [key=value ...]        20 seconds on one core
python benchmarks/quiet.py --seeds 1 --rounds 100 dataset=mnist model=lenet5 alpha=0.1
"""

import argparse

from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("changes", nargs="*", metavar="key=value", help="as `honestly simulate` takes them")
    options = parser.parse_args()
    changes = dict(change.split("=", 1) for change in options.changes)
    if "alpha" in changes:
        changes["alpha"] = float(changes["alpha"])
    for seed in range(options.seeds):
        settings = {"dataset": "digits", "clients": 20, "rounds": options.rounds, "seed": seed, **changes}
        accused = []
        for record in Federation(Experiment.of(settings)).rounds():
            accused.append(len(record.numbers["accused"]))
            accuracy = record.numbers["accuracy"]
            if len(accused) % 10 == 0 or len(accused) == options.rounds:  # show the progress of a long run
                per_round = sum(accused) / len(accused)
                print(
                    f"seed {seed}: round {len(accused)}, {per_round:.3f} accused per round, "
                    f"at most {max(accused)}; {accuracy:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
