"""Find out which honest clients the rule on whole updates accused late in training, and what its `room` changed.

    python benchmarks/accusations.py store FOLDER        a study's store (`honestly bench --out FOLDER --import FILE`)
    python benchmarks/accusations.py train --data DATA --out FOLDER        20 minutes on one core

`store` reads the second half of the rounds of the default rule and counts the honest clients that were accused,
separately for those that had been excluded in the previous round and for the others. `train` runs the paper's
configuration 1 on MNIST under sign flip: all rounds without room (the variant "no_room"), then the rounds after --split
again with room, starting from the same model. It then analyses the recorded updates.
"""

import argparse
import json
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
from bayesian_variants import Variant
from whole_update_rule import WholeUpdates

from honestly.rules.rule import GramGeometry

MNIST = {"dataset": "mnist", "model": "lenet5", "clients": 20, "malicious": 4, "attack": "sign_flip", "alpha": 0.5}
GAMMA = 4.0  # sign-flip attackers multiply their updates by -GAMMA


def from_store(folder: Path):
    """Print, per setting, how many honest clients were accused in the second half of the rounds."""
    from honestly.runs.store import Store

    store, result = Store.read(folder), {}
    for run in store.runs():
        if run.status != "done" or run.cell.get("rule") != "Ours":
            continue
        records = store.rounds(run.id)
        honesty = np.array([record["honesty"] for record in records], dtype=float)
        honest = np.ones(honesty.shape, dtype=bool)
        for row, record in zip(honest, records, strict=True):
            row[record["attacked"]] = False
        out = np.concatenate([np.zeros((1, honesty.shape[1]), dtype=bool), honesty[:-1] < 0.5])
        late = np.arange(len(records)) >= len(records) // 2
        accused = (honesty < 0.5) & honest
        key = (run.cell["dataset"], run.cell["config"], run.cell["alpha"])
        counts = [late.sum(), accused[late].sum()]
        for before in (out, ~out):
            counts += [(honest & before)[late].sum(), (accused & before)[late].sum()]
        result.setdefault(key, []).append([*counts])
    print("| data, configuration, alpha | accused per round | if excluded in the previous round | if believed |")
    print("|---|---:|---:|---:|")
    for key, rows in sorted(result.items()):
        rounds, accused, n_out, out, n_in, believed = np.sum(rows, axis=0)
        shares = [f"{100 * a / n:.1f} %" if n else "-" for a, n in ((out, n_out), (believed, n_in))]
        print(f"| {', '.join(map(str, key))} | {accused / rounds:.2f} | {' | '.join(shares)} |")


def train(args: argparse.Namespace):
    """Continue from the same model with both rules, and analyse the updates."""
    from honestly.sim.experiment import Experiment
    from honestly.sim.rounds import Federation
    from honestly.sim.state import State

    experiment = Experiment.of({**MNIST, "rounds": args.rounds, "seed": args.seed, "rule": "bayesian"})
    runs = {}
    middle = None
    for name, rule in (("without room", Variant(change="no_room")), ("with room", WholeUpdates())):
        federation = Federation(experiment, folder=args.data, record=args.out / name.replace(" ", "-"))
        state = replace(federation.start() if middle is None else middle, rule=rule)
        assert isinstance(state, State)
        runs[name] = []
        for record in federation.rounds(state):
            if record.state.round == args.split and middle is None:
                middle = record.state
            runs[name].append(record.numbers)
            blamed = set(record.numbers["accused"]) - set(record.numbers["attacked"])
            print(name, record.state.round, record.numbers["accuracy"], "accused although honest:", *blamed, flush=True)
    (args.out / "rounds.json").write_text(json.dumps(runs))
    print(f"\n{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}\n")
    print(f"| rounds {args.split + 1} to {args.rounds} | accused although honest, per round | missed | accuracy |")
    print("|---|---:|---:|---:|")
    for name, records in runs.items():
        last = [r for r in records if r["round"] > args.split]
        cells = [np.mean([r[key] for r in last]) for key in ("false_accusations", "misses", "accuracy")]
        print(f"| {name} | {cells[0]:.2f} | {cells[1]:.2f} | {cells[2]:.4f} |")
    print_geometry(args.out / "without-room", [t for t in (2, 10, 20, 40, 60, 80) if t <= args.rounds])


def print_geometry(folder: Path, rounds: list[int]):
    """Print lengths and angles of recorded updates, the last four of which were flipped."""
    print("\n| round | median length of the 16 | the longest, r^2 / s^2 | nearest attacker, r^2 / s^2 | ", end="")
    print("of the attackers' own updates | correlation of length and distance | largest cosine of errors |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for t in rounds:
        with np.load(folder / f"round-{t:04d}.npz", allow_pickle=False) as file:
            own = file["honest"].astype(float)
        sent = own.copy()
        sent[16:] *= -GAMMA
        mix = WholeUpdates().mix(GramGeometry(sent @ sent.T))
        errors = sent - mix.matrix[0] @ sent
        r2 = (errors**2).sum(axis=1)
        s2 = np.sort(r2)[10]
        own_r2 = ((own[16:] - mix.matrix[0] @ sent) ** 2).sum(axis=1)
        length = np.linalg.norm(own, axis=1)
        cosines = (errors @ errors.T / np.sqrt(np.outer(r2, r2)))[:16, :16]
        cells = [f"{np.median(length[:16]):.2f}", f"{r2[:16].max() / s2:.1f}", f"{r2[16:].min() / s2:.0f}"]
        cells += [f"{own_r2.min() / s2:.1f} to {own_r2.max() / s2:.1f}"]
        cells += [f"{np.corrcoef(length[:16], np.sqrt(r2[:16]))[0, 1]:.3f}", f"{np.triu(cosines, 1).max():.2f}"]
        print(f"| {t} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    commands = parser.add_subparsers(required=True)
    stored = commands.add_parser("store")
    stored.add_argument("folder", type=Path)
    stored.set_defaults(run=lambda args: from_store(args.folder))
    trained = commands.add_parser("train")
    trained.add_argument("--data", type=Path, help="where MNIST is (default: $HONESTLY_DATA)")
    trained.add_argument("--out", type=Path, default=Path("accusations"), help="where the recorded updates go")
    trained.add_argument("--rounds", type=int, default=85)
    trained.add_argument(
        "--split", type=int, default=45, help="the round after which both rules continue from the same model"
    )
    trained.add_argument("--seed", type=int, default=1)
    trained.set_defaults(run=train)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
