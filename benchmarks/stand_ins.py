"""Compare rules on real coordinates with the stand-ins that suites use for rules that need coordinates.

    python benchmarks/stand_ins.py          a minute on one core; writes results/leaderboard/stand-ins.json

`benchmarks/leaderboard.py --page` writes the table.

Digits, the small convolutional network with and without BatchNorm, ten clients, rounds 2 and 20, recorded with whole
updates. Only attacks that combine updates are included: random directions have no real coordinates to compare with.
"""

import study  # noqa: F401 - limits threads, before NumPy is loaded: processor time counts all of them

# isort: split
import json
from pathlib import Path

import numpy as np
from leaderboard import not_judged

from honestly.rules import RULE_CATALOG
from honestly.studies.layers.forge import forge
from honestly.studies.layers.measure import measure
from honestly.studies.layers.space import LayeredPopulation, Space
from honestly.studies.layers.stand_ins import StandIns, needs_coordinates
from honestly.studies.record import grams, plans, train_rounds
from honestly.studies.specs import Contestant

OUT = Path(__file__).parents[1] / "results" / "leaderboard" / "stand-ins.json"
WORDS = ["dataset=digits", "model=cnn,cnn_norm", "clients=10", "rounds=2,20", "epochs=2", "seed=5"]
ATTACKS = ("sign_flip", "sign_flip:gamma=1", "scaling", "ipm", "ipm:epsilon=2", "mimic", "free_rider", "label_flip",
           "backdoor", "one_layer:which=last:lie=flip")  # fmt: skip
COUNTS = (2, 4)


def rules():
    """Every rule that needs coordinates and nothing else that a recording lacks."""
    every = [Contestant(name) for name in RULE_CATALOG if name not in not_judged()]
    return [one for one in every if needs_coordinates([part for part, _ in one.parts])]


def real(space, rows, sizes):
    """The basis of the space in real coordinates; random directions have none."""
    X = rows.double().numpy()
    mean = X[: space.H].mean(axis=0)
    basis = np.concatenate([X - mean, mean[None], np.zeros((space.b - len(X) - 1, X.shape[1]))])
    return StandIns(basis, sizes, sizes, mean, space.H)


def scores():
    """By rule, kappa of the worst layer in each case, real and by stand-ins."""
    results = {one.spec: [] for one in rules()}
    for plan in plans(WORDS):
        for t, rows, layout in train_rounds(plan):
            if rows is None:
                continue
            sizes = np.array([int(np.prod(shape, dtype=np.int64)) for shape in layout.shapes])
            K, P = plan.experiment.clients, plan.poisoned
            poisoned = {name: np.arange(K + i * P, K + (i + 1) * P) for i, name in enumerate(plan.attacks)}
            population = LayeredPopulation(f"{plan.name} r{t}", grams(rows, layout), sizes, K, poisoned)
            for M in COUNTS:
                space = Space.of(population, M, np.random.default_rng(M))
                both = real(space, rows, sizes), StandIns.of(space, np.random.default_rng(M))
                for attack in ATTACKS:
                    sent = forge(space, attack, np.random.default_rng(0))
                    for one in rules():
                        pipeline, _ = one.build(K=K, f=M, root=None)
                        pair = [measure(space, sent, pipeline, basis).worst_layer for basis in both]
                        results[one.spec].append(pair)
    return results


def main():
    OUT.write_text(json.dumps(scores()) + "\n")


if __name__ == "__main__":
    main()
