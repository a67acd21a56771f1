"""`honestly demo`: a federation in which 40 % of the clients lie, averaged by FedAvg and by the Bayesian rule."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

ROUNDS, CLIENTS, MALICIOUS = 15, 20, 8
RUNS = (
    ("FedAvg, nobody lies", {"rule": "mean", "attack": "none", "malicious": 0}),
    ("FedAvg", {"rule": "mean", "attack": "sign_flip", "malicious": MALICIOUS}),
    ("the Bayesian rule", {"rule": "bayesian", "attack": "sign_flip", "malicious": MALICIOUS}),
)


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "demo",
        help="train a small federation under attack: a table and an HTML report",
        description="Train a small federation in which 40 % of the clients lie, once with FedAvg and once with the "
        "Bayesian rule. Print a table, and write a picture and an HTML report.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="the folder for the report (default: demo)"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds of training (default: {ROUNDS})"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of all random numbers (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=run, extra="sim")


def run(args: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    from honestly.sim.run import Stop

    with Stop() as stop:
        return _demo(args, stop)


def _demo(args: argparse.Namespace, stop: Any) -> int:
    from rich.console import Console

    from honestly.bars import Bars
    from honestly.runs.database import StoreError
    from honestly.runs.record import RoundRecord
    from honestly.runs.writing import write_file
    from honestly.show.figure import png, run_figure
    from honestly.show.run_page import RunView, page
    from honestly.show.terminal import TerminalTable
    from honestly.show.verdict import sentence
    from honestly.sim.experiment import Experiment
    from honestly.sim.rounds import Federation
    from honestly.sim.summary import summary

    console = Console(quiet=args.quiet, markup=False)
    start = time.perf_counter()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write to {args.out}: {error.strerror}; choose another folder with --out") from error
    console.print(
        f"{CLIENTS} clients learn to read digits together; {MALICIOUS} of them send four times the opposite of what "
        "they learned.\n"
    )
    common = {"dataset": "digits", "clients": CLIENTS, "rounds": args.rounds, "seed": args.seed}
    experiments = [(title, Experiment.of({**common, **changes})) for title, changes in RUNS]
    finished: list[RunView] = []
    with Bars(silent=args.quiet) as bars:
        for title, e in experiments:
            bar = bars.add(f"{title:20}", e.rounds)
            records: list[RoundRecord] = []
            for record in Federation(e).rounds():
                records.append(record.found)
                accused = record.found.accused
                news = f"accuracy {record.found.accuracy:.3f}"
                if accused:
                    news += "  accused: " + " ".join(map(str, accused))
                bars.update(bar, advance=1, news=news)
                if stop.requested:
                    raise KeyboardInterrupt
            finished.append(RunView.of(title, e, records))
    rows: list[list[str]] = []
    for one in finished:
        s = summary(one.records)
        lied = any(r.attacked for r in one.records)
        cells = [f"{s['misses_per_round']:.1f}" if lied else "–", f"{s['false_accusations_per_round']:.1f}"]
        rows.append([one.title, f"{s['accuracy_last']:.3f}", *cells])
    if not args.quiet:
        columns = ["average", "accuracy", "attackers missed per round", "falsely accused per round"]
        TerminalTable(columns, rows, right=columns[1:]).show()
    lead = (
        f"{CLIENTS} clients learn to read digits together. In two of three runs, {MALICIOUS} of them send four times "
        "the opposite of what they learned. The plain average (FedAvg) believes everybody; the Bayesian rule infers "
        "from the updates alone which clients to believe, without being told how many lie."
    )
    last = experiments[-1][1]
    picture = png(run_figure(finished[-1].records, clients=CLIENTS, rule=last.rule.name, attack=last.attack.name))
    text = page("A federation under attack", finished, lead=lead, picture=picture)
    write_file(args.out / "report.html", text.encode())
    write_file(args.out / "figure.png", picture)
    seconds = f"{time.perf_counter() - start:.0f} s"
    console.print(f"\n{sentence(finished)}\n", highlight=False)
    console.print(f"{args.out / 'report.html'}\n{args.out / 'figure.png'}\n{seconds}", soft_wrap=True)
    return 0
