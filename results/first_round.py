"""Why honest clients are accused in round 1 of CIFAR-10 at alpha 1: the evidence against them, layer by layer.

    python results/first_round.py --data DATA --device cuda    # train the round anew; half a minute on an H200
    python results/first_round.py FILE.npz                     # look at Gram matrices that --save has kept

For each run it names the honest clients that the default rule accuses, and why.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

import honestly as hn
from honestly.rules.rule import GramGeometry

Arrays = dict[str, npt.NDArray]
PAPER = {
    "clients": 20, "rounds": 1, "partition": "balanced", "alpha": 1.0, "epochs": 10, "batch": 128, "lr": 0.01,
    "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4, "flip": True, "crop": 4, "precision": "bf16",
    "dataset": "cifar10", "model": "resnet18_half", "rule": "bayesian",
}  # fmt: skip
RUNS = {
    "label flip, configuration 1": {"malicious": 4, "attack": "label_flip"},
    "sign flip, configuration 1": {"malicious": 4, "attack": "sign_flip"},
    "label flip, configuration 3": {"malicious": 9, "dynamic": True, "attack": "label_flip"},
}


def main() -> None:
    """Train or read, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE.npz", help="Gram matrices of an earlier call")
    parser.add_argument("--data", type=Path, help="where the data sets are (default: $HONESTLY_DATA)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--save", type=Path, metavar="FILE.npz", help="keep the Gram matrices")
    args = parser.parse_args()
    if args.file is not None:
        with np.load(args.file, allow_pickle=False) as file:
            arrays: Arrays = dict(file)
    else:
        arrays = train(args.data, args.device)
    if args.save is not None:
        np.savez_compressed(args.save, **arrays)
    print("| run | accused although honest | nats | why |")
    print("|---|---:|---:|---|")
    for run in RUNS:
        look(run, arrays)


def train(data: Path | None, device: str) -> Arrays:
    """One round of each run: Gram matrices by layer, who attacked, and what the layers are."""
    import torch

    from honestly.sim import rounds
    from honestly.sim.experiment import Experiment

    arrays: Arrays = {}
    aggregate = rounds.aggregate
    for run, settings in RUNS.items():

        def keep(updates, steps, *, reference, layers, run=run, **rest):
            pieces = torch.split((updates - reference).double(), list(layers.values()), dim=1)
            arrays[f"{run}/gram"] = torch.stack([piece @ piece.T for piece in pieces]).cpu().numpy()
            arrays["names"], arrays["sizes"] = np.array(list(layers)), np.array(list(layers.values()))
            return aggregate(updates, steps, reference=reference, layers=layers, **rest)

        rounds.aggregate = keep
        try:
            federation = rounds.Federation(Experiment.of(PAPER | settings), folder=data, device=device)
            for record in federation.rounds():
                arrays[f"{run}/attacked"] = np.array(record.numbers["attacked"], dtype=int)
        finally:
            rounds.aggregate = aggregate
    return arrays


def look(run: str, arrays: Arrays) -> None:
    """A row for each honest client that is accused."""
    geometry = GramGeometry.of_layers(
        arrays[f"{run}/gram"], has_reference=True, layer_names=tuple(arrays["names"]), layer_sizes=arrays["sizes"]
    )
    mix = hn.Bayesian().mix(geometry)
    evidence = mix.diagnostics["layers"]
    for k in sorted({*range(geometry.K)} - {*arrays[f"{run}/attacked"].tolist()}):
        if mix.verdicts[k] == "accused":
            print(f"| {run} | {k} | {np.nanmax(evidence[k]):.1f} | {mix.explanations[k]} |")


if __name__ == "__main__":
    main()
