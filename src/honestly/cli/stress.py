"""`honestly stress`: rules against attacks on updates, in seconds."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

DESCRIPTION = """\
Every rule against every attack on honest populations of updates, without training. Reports
kappa = |aggregate - honest mean|^2 / honest variance: mean, worst case with an attacker that searches
against each rule, false accusations, detection and calibration.
"""
EPILOG = """\
names are listed by `honestly rules` and `honestly attacks`; several are separated by spaces or commas

examples
  honestly stress
  honestly stress --rules bayesian geometric_median nnm+median --malicious 8
  honestly stress --believed-f true 0 4 9 --out stress
  honestly stress --populations recorded/ isotropic
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "stress",
        help="rules against attacks on updates, without training",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rules",
        nargs="+",
        metavar="RULE",
        help="names, with mixers and settings: nnm+median, bayesian:variant=paper; 'all' for every rule (default: the "
        "usual ones)",
    )
    parser.add_argument(
        "--attacks",
        nargs="+",
        metavar="ATTACK",
        help="names with settings: alie:z=1.5; 'fixed' for all that do not search (default: those and 'adaptive')",
    )
    parser.add_argument(
        "--populations",
        nargs="+",
        metavar="POPULATION",
        help="isotropic, low_rank, heavy_tailed, unequal_norms, clustered, or recorded updates: .npz files or folders "
        "of them, made by `honestly simulate --record` (default: the synthetic ones)",
    )
    parser.add_argument(
        "--clients", nargs="+", type=_integers, default=[[20]], metavar="K", help="numbers of clients (default: 20)"
    )
    parser.add_argument(
        "--malicious",
        nargs="+",
        type=_numbers,
        default=[[0, 1, 4, 8, 9]],
        metavar="M",
        help="numbers of attackers, or shares such as 0.4 (default: 0,1,4,8,9)",
    )
    parser.add_argument(
        "--believed-f",
        nargs="+",
        type=_beliefs,
        default=[[None]],
        metavar="F",
        help="what rules that need f are told: 'true' or a number; several show what a wrong one costs (default: true)",
    )
    parser.add_argument("--seeds", nargs="+", type=_integers, default=[[0]], metavar="S", help="seeds (default: 0)")
    parser.add_argument(
        "--jobs", type=int, default=_cores(), metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write cases, tables, heatmap and an HTML page here")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the study and show it."""
    if args.jobs < 1:
        raise ValueError(f"--jobs {args.jobs}: give at least 1")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)  # before the work, not after it

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from honestly.bench import stress
    from honestly.bench.specs import RULES
    from honestly.bench.stress_report import about, write
    from honestly.bench.stress_tables import tables

    errors = Console(stderr=True)
    rules = _flat(args.rules) if args.rules else stress.CORE
    attacks = _flat(args.attacks) if args.attacks else (*stress.SUITE, stress.ADAPTIVE)
    study = stress.Study(
        rules=tuple(dict.fromkeys(r for rule in rules for r in (RULES if rule == "all" else (rule,)))),
        attacks=tuple(
            dict.fromkeys(a for attack in attacks for a in (stress.SUITE if attack == "fixed" else (attack,)))
        ),
        populations=tuple(_flat(args.populations) if args.populations else stress.KINDS),
        clients=tuple(k for ks in args.clients for k in ks),
        malicious=tuple(m for ms in args.malicious for m in ms),
        believed=tuple(dict.fromkeys(f for fs in args.believed_f for f in fs)),
        seeds=tuple(s for ss in args.seeds for s in ss),
    )
    start = time.perf_counter()
    columns = (TextColumn("stress"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=args.json or not sys.stderr.isatty()) as bar:
        shown = bar.add_task("stress", total=len(study.tasks()))
        cases = stress.run(study, jobs=args.jobs, progress=lambda done, total: bar.update(shown, completed=done))
    seconds = time.perf_counter() - start
    found = tables(cases)
    files = write(study, cases, args.out, seconds=seconds) if args.out else []
    if args.json:
        print(json.dumps({**about(study, seconds), "tables": {t.name: t.records() for t in found}}, allow_nan=False))
        return 0
    console = Console()
    for table in found:
        if not table.name.startswith("attack_"):  # too wide for a terminal; the files have it
            console.print(table.rich())
            console.print()
    console.print(f"{len(cases)} cases in {seconds:.1f} s", highlight=False)
    for file in files:
        console.print(f"wrote {file}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _flat(values: Sequence[str]) -> list[str]:
    return [word for value in values for word in value.split(",") if word]


def _listed(value: str, kind: Callable[[str], _T], what: str) -> list[_T]:
    try:
        return [kind(word) for word in value.split(",") if word]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r}: give {what}, separated by commas or spaces") from None


def _numbers(value: str) -> list[float]:
    return _listed(value, float, "numbers")


def _integers(value: str) -> list[int]:
    return _listed(value, int, "whole numbers")


def _beliefs(value: str) -> list[int | None]:
    return _listed(value, lambda word: None if word == "true" else int(word), "whole numbers or 'true'")
