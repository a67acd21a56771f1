"""`honestly simulate`: a federation under attack, in one process."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from honestly.runs.record import RoundRecord
    from honestly.sim.rounds import Federation
    from honestly.sim.run import Outcome
    from honestly.sim.state import Record

EPILOG = """\
examples:
  honestly simulate dataset=digits rounds=6 clients=10 rule=bayesian attack=sign_flip malicious=3 --out runs/a
  honestly simulate paper/fmnist-config2.toml rule=bayesian attack=backdoor alpha=0.5 --device cuda
  honestly simulate my.toml rule=nnm:f=4+multi_krum:f=4,keep=8 attack=sign_flip:gamma=2

A rule or an attack takes its settings after a colon (rule=krum:f=2), and a rule takes mixers in front, joined by +.
Name a class of your own as file.py:Class. rule.f=4 and attack.gamma=2 change one setting of FILE.toml. Other keys:
  dataset model clients rounds partition alpha participation dropout buffer delay malicious dynamic chosen start stop
  period burst turns warm_up server sizes root epochs batch lr momentum nesterov weight_decay precision fit flip crop
  evaluate_every seed

The run's folder has rounds.jsonl, figure.png and report.html. The same command resumes an interrupted run.
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "simulate",
        help="train a federation under attack and see which clients the rule believes",
        description="Train a federation under attack in this process, and see which clients the rule believes.\n"
        "Everything has a default; `honestly rules`, `honestly attacks` and `honestly datasets` list the names.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "words", nargs="*", metavar="FILE.toml | key=value", help="an experiment or preset, and changes"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/ID)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 or auto (default: cpu)")
    parser.add_argument("--seed", type=int, metavar="N", help="the same as seed=N")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the data sets are (default: $HONESTLY_DATA)")
    parser.add_argument("--record", type=Path, metavar="DIR", help="save the honest updates of every round here")
    parser.add_argument("--restart", action="store_true", help="discard what is in the run's folder and start again")
    parser.add_argument("--show-partition", action="store_true", help="show which client has which classes, and exit")
    parser.add_argument("--presets", action="store_true", help="list the experiments that come with the package")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--quiet", action="store_true", help="print nothing but errors")
    output.add_argument("--json", action="store_true", help="print one JSON object per round")
    parser.set_defaults(run=run, extra="sim")


def run(args: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    from honestly.sim import settings

    if args.presets:
        print("\n".join(settings.presets()))
        return 0
    try:
        words = [*args.words, *([] if args.seed is None else [f"seed={args.seed}"])]
        experiment = settings.experiment(words)
        device = device_of(args.device)
        if args.show_partition:
            return _show_partition(experiment, args.data)
        return _simulate(args, experiment, device)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: finished rounds are saved; run the same command to resume") from None


def device_of(name: str) -> str:
    """The device that a word stands for; ValueError if this machine does not have it."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"--device {name}: expected cpu, cuda, cuda:N or auto")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: this machine has no CUDA device, or this PyTorch cannot use it; use cpu")
    return name


def _simulate(args: argparse.Namespace, experiment: Any, device: str) -> int:
    from honestly.sim.run import run as run_experiment

    out: Path = args.out if args.out is not None else Path("runs") / experiment.id[:12]
    view: Any = _Lines() if args.json else _Nothing() if args.quiet else _Terminal(out)
    with view:
        outcome = run_experiment(
            experiment, out, folder=args.data, device=device, record=args.record, restart=args.restart,
            on_start=view.start, on_round=view.round, on_warning=view.warning,
        )  # fmt: skip
    write_pictures(outcome, out)
    if not outcome.finished:
        done, of = len(outcome.rounds), experiment.rounds
        print(f"stopped after round {done} of {of}; run the same command to resume (--out {out})", file=sys.stderr)
        return 130
    view.end(outcome, out)
    return 0


def write_pictures(outcome: Outcome, out: Path) -> None:
    """Write the figure, the report and the summary of the rounds so far."""
    from honestly.runs.writing import write_file
    from honestly.show.figure import png, run_figure
    from honestly.show.run_page import RunView, page
    from honestly.sim.summary import summary

    if not outcome.rounds:
        return
    e = outcome.experiment
    write_file(out / "summary.json", json.dumps(summary(outcome.rounds), indent=2).encode() + b"\n")
    against = f"against {e.attack.name}" if e.adversary.malicious else "where nobody lies"
    title = f"{e.rule.name} {against}: {e.dataset}, {e.clients} clients"
    figure = run_figure(outcome.rounds, clients=e.clients, rule=e.rule.name, attack=e.attack.name)
    picture = png(figure)
    write_file(out / "figure.png", picture)
    text = page(title, [RunView.of(e.rule.name, e, outcome.rounds)], picture=picture)
    write_file(out / "report.html", text.encode())


def _show_partition(experiment: Any, folder: Path | None) -> int:
    import numpy as np

    from honestly.show.partition import print_partition
    from honestly.sim.data import load
    from honestly.sim.partition import partition
    from honestly.sim.seeds import generator

    e = experiment
    data = load(e.dataset, folder)
    rng = generator(e.seed, "partition")
    parts = partition(data.labels, e.clients, kind=e.partition, alpha=e.alpha, rng=rng)
    counts = np.array([np.bincount(data.labels[p], minlength=len(data.classes)) for p in parts])
    title = f"{e.dataset}: {e.partition}" + (f", alpha {e.alpha:g}" if "iid" not in e.partition else "")
    print_partition(title, counts, data.classes, e.adversary.attackers)
    return 0


class _Nothing:
    """Show nothing."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self, federation: Federation, records: list[RoundRecord]) -> None:
        """Before the first round."""

    def round(self, record: Record) -> None:
        """After each round."""

    def warning(self, text: str) -> None:
        """Show a warning."""
        print(f"honestly simulate: warning: {text}", file=sys.stderr)

    def end(self, outcome: Outcome, out: Path) -> None:
        """After the last round."""


class _Lines(_Nothing):
    """One JSON object per round, also for the rounds that an earlier run finished."""

    def start(self, federation: Federation, records: list[RoundRecord]) -> None:
        """The rounds that are there already."""
        for one in records:
            print(json.dumps(one.as_json(), separators=(",", ":")), flush=True)

    def round(self, record: Record) -> None:
        """The new round."""
        print(json.dumps(record.numbers, separators=(",", ":")), flush=True)


class _Terminal(_Nothing):
    """Progress on a terminal."""

    def __init__(self, out: Path) -> None:
        from honestly.bars import Bars

        self.out, self.bars, self.bar = out, Bars(left=True), 0

    def __enter__(self) -> _Terminal:
        self.bars.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.__exit__()

    def start(self, federation: Federation, records: list[RoundRecord]) -> None:
        """Say what is run, and where an earlier run stopped."""
        e = federation.experiment
        M = e.adversary.malicious
        self.bars.say(
            f"{e.clients} clients, {M} malicious ({e.attack.name}{', dynamic' if e.dynamic else ''}), {e.dataset}, "
            f"{e.model}, rule {e.rule.name}; {self.out}"
        )
        if records:
            self.bars.say(f"resuming after round {len(records)}")
        self.bar = self.bars.add("round", e.rounds, done=len(records))

    def round(self, record: Record) -> None:
        """Accuracy, speed and who is accused."""
        n = record.found
        news = [f"accuracy {n.accuracy:.3f}" if n.accuracy is not None else ""]
        if n.asr is not None:
            news.append(f"ASR {n.asr:.3f}")
        news.append(f"{record.images / max(sum(record.seconds.values()), 1e-9):,.0f} images/s")
        if n.accused is not None:
            news.append("accused: " + (" ".join(map(str, n.accused)) or "nobody"))
        if n.refused:
            news.append(n.status)
        self.bars.update(self.bar, advance=1, news="  ".join(part for part in news if part))

    def end(self, outcome: Outcome, out: Path) -> None:
        """The final table and where the pictures are."""
        from honestly.show.terminal import TerminalTable
        from honestly.sim.summary import LAST, summary

        rows: list[list[str]] = []
        names = {
            "accuracy_last": "accuracy, last round", "accuracy_mean_last_20": "accuracy, mean of the last 20 rounds",
            "asr_last": "attack success rate, last round", "false_accusations_per_round": "falsely accused per round",
            "misses_per_round": "attackers missed per round", "refused_rounds": "rounds without a usable majority",
        }  # fmt: skip
        numbers = summary(outcome.rounds)
        for key, label in names.items():
            value = numbers[key]
            if key == "accuracy_mean_last_20" and len(outcome.rounds) < LAST:
                continue
            if value is not None and not (key == "refused_rounds" and value == 0):
                rows.append([label, f"{value:.4f}" if isinstance(value, float) else str(value)])
        TerminalTable(["measure", "value"], rows, right=["value"]).show()
        print(f"{out / 'figure.png'}\n{out / 'report.html'}")
