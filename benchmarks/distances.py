"""Print how far away the attackers of a finished study were: distances to the geometric median, from its weights.

    honestly bench --out cifar --import results/stores/cifar.tar.gz
    python benchmarks/distances.py cifar --attack backdoor --round 1

Weiszfeld's weights are inverse distances, so the records of any run with the rule `geometric_median` give the distance
of each client, in multiples of the honest clients' median distance.
"""

from __future__ import annotations

import argparse
from statistics import median

from honestly.runs.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="folder of the study")
    parser.add_argument("--attack", default="backdoor")
    parser.add_argument("--round", type=int, default=1)
    args = parser.parse_args()
    store = Store.read(args.study)
    for run in store.runs():
        if run.experiment["rule"]["name"] != "geometric_median" or run.cell.get("attack") != args.attack:
            continue
        record = next(r for r in store.rounds(run.id) if r["round"] == args.round)
        away = [1 / w for w in record["weights"]]
        attacked = set(record["attacked"])
        unit = median(d for k, d in enumerate(away) if k not in attacked)
        for name, who in (("honest", set(range(len(away))) - attacked), ("attackers", attacked)):
            far = sorted(away[k] / unit for k in who)
            print(f"{run.cell} round {args.round}, {name}: {' '.join(f'{d:.2f}' for d in far)}")


if __name__ == "__main__":
    main()
