"""`honestly stress`: rules against attacks on updates, in seconds."""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from honestly.cli import stress_suite
from honestly.cores import usable_cores

if TYPE_CHECKING:
    from rich.console import Console

    from honestly.show.tables import Table
    from honestly.studies.stress import StressStudy

_T = TypeVar("_T")

DESCRIPTION = """\
Test rules against attacks on populations of honest updates, without training. Reports
kappa = |aggregate - honest mean|^2 / honest variance (where layers are known, also of the worst layer): its mean, and
its worst case with an attacker that searches against each rule; also false accusations, detection and calibration.
"""
EPILOG = """\
`honestly rules` and `honestly attacks` list the names. Separate several names by spaces or commas.

examples
  honestly stress
  honestly stress --rules bayesian geometric_median nnm+median --malicious 8
  honestly stress --believed-f true 0 4 9 --out stress
  honestly stress --populations recorded/ isotropic
  honestly stress --record layers.npz dataset=mnist alpha=0.1,0.5 left_out=0,8 rounds=1,3,10,40
  honestly stress --populations layers.npz
  honestly stress --suite small-1 --rules bayesian geometric_median
  honestly stress --submit rule.py:MyRule --json

recordings by layer
  --record OUT.npz trains federations and stores one Gram matrix for each tensor. It takes the settings of `honestly
  simulate` (dataset=, model=, clients=, alpha=, seed=, ...). Several values, such as alpha=0.1,0.5, make several
  courses. Further settings:
    rounds=    the rounds to store
    attack=    the data attacks to record beside the honest clients (default: label_flip,backdoor)
    poisoned=  the number of clients that make them (default: just under half)
    left_out=  how many of the last clients are never averaged
    idle=      how many of the first clients send the model back unchanged
    images=    how many of the training images are used (default: all)

suites
  A suite is a fixed set of recordings, attacks and numbers of attackers, with a name and a version, so people can
  compare their figures. --json prints one line for each rule. small-1 and images-1 (MNIST, Fashion-MNIST, CIFAR-10)
  come with the package; --make-suite core-1 makes the third in the folder of the data sets.
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "stress",
        help="test rules against attacks on updates, without training",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help="with --record: what to train")
    parser.add_argument(
        "--rules",
        nargs="+",
        metavar="RULE",
        help="names, with mixers and settings: nnm+median, multi_krum:f=4,keep=8, file.py:Class; 'all' for every rule "
        "(default: the usual ones)",
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
        help="isotropic, low_rank, heavy_tailed, unequal_norms, clustered; by layer: digits, digits_idle; or "
        "recordings: .npz files or folders of them, made by `honestly simulate --record` or, by layer, by --record "
        "(default: all that have a name)",
    )
    parser.add_argument("--clients", nargs="+", type=_integers, metavar="K", help="numbers of clients (default: 20)")
    parser.add_argument(
        "--malicious",
        nargs="+",
        type=_numbers,
        metavar="M",
        help="numbers of attackers, or shares such as 0.4 (default: 0,1,4,8,9)",
    )
    parser.add_argument(
        "--believed-f",
        nargs="+",
        type=_beliefs,
        metavar="F",
        help="what rules that need f are told: 'true' or a number; several show what a wrong one costs (default: true)",
    )
    parser.add_argument("--seeds", nargs="+", type=_integers, default=[[0]], metavar="S", help="seeds (default: 0)")
    parser.add_argument(
        "--jobs", type=int, default=usable_cores(), metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write cases, tables, heatmap and an HTML page here")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    parser.add_argument("--record", type=Path, metavar="OUT.npz", help="record populations by layer, and stop")
    parser.add_argument("--device", default="cpu", help="with --record: cpu, cuda, cuda:1 or auto (default: cpu)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="with --record and suites: where the data sets are")
    stress_suite.add(parser)
    parser.set_defaults(run=run, extra="cli")


def run(args: argparse.Namespace) -> int:
    """Run the study and show it."""
    if args.record or args.make_suite:
        args.extra = "sim"  # they train
    if args.record:
        return _record(args)
    if args.make_suite:
        return stress_suite.make(args)
    if args.words:
        raise ValueError(f"'{args.words[0]}' is a setting of training, which needs --record OUT.npz")
    if args.jobs < 1:
        raise ValueError(f"--jobs {args.jobs}: give at least 1")
    if args.out:
        from honestly.runs.writing import remedies

        with remedies(args.out):
            args.out.mkdir(parents=True, exist_ok=True)  # check before the work starts
    if args.suite or args.submit:
        return stress_suite.run(args, _flat(args.rules) if args.rules else None)

    from rich.console import Console

    from honestly.bars import Bars
    from honestly.show.stress_page import about, write
    from honestly.show.stress_tables import tables
    from honestly.studies import stress

    study = _study_of(args)
    start = time.perf_counter()
    with Bars(stderr=True, transient=True, silent=args.json) as bars:
        bar = bars.add("stress", len(study.tasks()))
        cases = stress.run(study, jobs=args.jobs, progress=lambda done, total: bars.update(bar, done=done))
    seconds = time.perf_counter() - start
    lacking = stress.missing_attacks(study, cases)
    named = _flat(args.attacks or [])
    for attack, why in ((attack, why) for attack, why in lacking.items() if attack in named):
        print(f"honestly stress: no case under {attack}: it {why}", file=sys.stderr)
    judged = {case.rule for case in cases}
    missing = [spec for spec in study.rules if spec not in judged]
    if missing and len(lacking) < len(study.attacks):
        print(
            f"honestly stress: no case for {', '.join(missing)}: there are too few clients for it, or it looks at "
            "coordinates, single tensors or BatchNorm's statistics, which these populations do not have",
            file=sys.stderr,
        )
    if not cases:
        return 1
    all_tables = tables(cases, study.attacks)
    files = write(study, cases, args.out, seconds=seconds) if args.out else []
    if args.json:
        print(
            json.dumps({**about(study, seconds), "tables": {t.name: t.records() for t in all_tables}}, allow_nan=False)
        )
        return 0
    _show(Console(), all_tables, files, f"{len(cases)} cases in {seconds:.1f} s")
    return 0


def _study_of(args: argparse.Namespace) -> StressStudy:
    """The study that the options describe, with the usual values of those that are not given."""
    from honestly.rules import RULE_CATALOG
    from honestly.studies import stress

    rules = _flat(args.rules) if args.rules else stress.CORE
    attacks = _flat(args.attacks) if args.attacks else (*stress.SUITE, stress.ADAPTIVE)
    return stress.StressStudy(
        rules=tuple(dict.fromkeys(r for rule in rules for r in (RULE_CATALOG if rule == "all" else (rule,)))),
        attacks=tuple(
            dict.fromkeys(a for attack in attacks for a in (stress.SUITE if attack == "fixed" else (attack,)))
        ),
        populations=tuple(_flat(args.populations) if args.populations else (*stress.KINDS, *stress.RECORDED)),
        clients=tuple(k for ks in args.clients or [[20]] for k in ks),
        malicious=tuple(m for ms in args.malicious or [[0, 1, 4, 8, 9]] for m in ms),
        believed=tuple(dict.fromkeys(f for fs in args.believed_f or [[None]] for f in fs)),
        seeds=tuple(s for ss in args.seeds for s in ss),
    )


def _show(console: Console, tables: Sequence[Table], files: Sequence[Path], about: str) -> None:
    """The tables that fit a terminal, and the files that were written."""
    for table in tables:
        if not table.name.startswith("attack_"):  # too wide for a terminal; it is in the files
            console.print(table.rich(console.width))
            console.print()
    console.print(about, highlight=False)
    for file in files:
        console.print(f"wrote {file}", highlight=False, markup=False, soft_wrap=True)


def _record(args: argparse.Namespace) -> int:
    """Train, and write the Gram matrices."""
    if args.record.suffix != ".npz":
        raise ValueError(f"--record {args.record}: give a name that ends with .npz")

    from honestly.bars import Bars
    from honestly.cli.simulate import device_of
    from honestly.runs.writing import remedies, write_file
    from honestly.studies.record import plans, record
    from honestly.studies.recordings import Course, write

    device, chosen = device_of(args.device), plans(args.words)
    with remedies(args.record.parent):
        args.record.parent.mkdir(parents=True, exist_ok=True)
    courses: list[Course] = []
    with Bars(stderr=True, silent=args.json) as bars:
        for number, plan in enumerate(chosen, start=1):
            bar = bars.add(f"{number} of {len(chosen)}, {plan.name}: round")

            def tell(done: int, of: int, bar: int = bar) -> None:
                bars.update(bar, done=done, total=of)

            courses.append(record(plan, folder=args.data, device=device, progress=tell))
            packed = io.BytesIO()
            write(packed, courses)
            write_file(args.record, packed.getvalue())  # save finished courses, in case a later one is interrupted
    layers = ", ".join(f"{course.name} ({len(course.layers)} layers)" for course in courses)
    print(f"wrote {args.record}: {layers}")
    return 0


def _flat(values: Sequence[str]) -> list[str]:
    from honestly.catalog import split_words

    return [word for value in values for word in split_words(value)]


def _split_values(value: str, kind: Callable[[str], _T], what: str) -> list[_T]:
    try:
        return [kind(word) for word in value.split(",") if word]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r}: give {what}, separated by commas or spaces") from None


def _numbers(value: str) -> list[float]:
    return _split_values(value, float, "numbers")


def _integers(value: str) -> list[int]:
    return _split_values(value, int, "whole numbers")


def _beliefs(value: str) -> list[int | None]:
    return _split_values(value, lambda word: None if word == "true" else int(word), "whole numbers or 'true'")
