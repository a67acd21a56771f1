"""`honestly stress --suite`, `--submit` and `--make-suite`: judge rules by a named suite, and make suites."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from honestly.studies.suites.spec import RecordingComparison

#: Who is judged unless rules are named.
USUAL = (
    *("bayesian", "bayesian:variant=paper", "geometric_median", "centered_clipping", "mean", "multi_krum", "krum"),
    *("nnm+geometric_median", "nnm+multi_krum"),
)
#: Options of `honestly stress` that a suite decides.
FIXED = ("attacks", "populations", "clients", "malicious", "believed-f")


def add(parser: Any) -> None:
    """Add the options."""
    parser.add_argument("--suite", metavar="NAME", help="judge the rules by a named suite: small-1, core-1, images-1")
    parser.add_argument(
        "--submit",
        action="append",
        metavar="FILE.py:RULE",
        help="judge a rule of your own by the suite (default: small-1); this runs the file, in a process of its own",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long a rule of your own may take for one answer; then it is stopped (default: 10)",
    )
    parser.add_argument("--make-suite", metavar="NAME", help="train and record a named suite, and stop")


def run(args: argparse.Namespace, rules: Sequence[str] | None) -> int:
    """Judge, and show one line for each rule."""
    from honestly._version import __version__
    from honestly.bars import Bars
    from honestly.runs.writing import write_file
    from honestly.studies import suites
    from honestly.studies.suites.entries import all_rules
    from honestly.studies.suites.spec import compare, content_hash, open_courses

    for option in FIXED:
        if getattr(args, option.replace("-", "_")) is not None:
            raise ValueError(f"--{option}: a suite fixes populations, clients and attacks: leave out this option")
    seeds = [seed for seeds in args.seeds for seed in seeds]
    if len(seeds) != 1:
        raise ValueError(f"--seeds {','.join(map(str, seeds))}: a suite takes one seed at a time")
    if seeds[0] < 0:
        raise ValueError(f"--seeds {seeds[0]}: must be at least 0")
    if not 0 < args.limit < 1e6:
        raise ValueError(f"--limit {args.limit:g}: give a number of seconds above 0")
    suite = suites.load(args.suite or "small-1")
    for word in args.submit or ():
        if ":" not in word:
            raise ValueError(f"--submit {word}: name the class in the file, as in {word}:MyRule")
    named = rules or (() if args.submit else USUAL)
    words = [word for rule in named for word in (all_rules() if rule == "all" else (rule,))]
    judged = tuple(dict.fromkeys([*(args.submit or ()), *words]))
    courses = open_courses(suite, args.data)
    origin = compare(suite, courses)
    if origin.word != "published":
        print(_origin(suite.name, origin), file=sys.stderr)
    (seed,) = seeds
    with Bars(stderr=True, transient=True, silent=args.json) as bars:
        bar = bars.add(f"{suite.name}: rounds")
        standings = suites.judge(
            suite,
            judged,
            seed=seed,
            jobs=args.jobs,
            folder=args.data,
            limit=args.limit,
            progress=lambda done, of: bars.update(bar, done=done, total=of),
        )
    facts = {"suite": suite.name, "spec": suite.hash, "content": content_hash(courses), "recording": origin.word}
    lines = [
        json.dumps({**facts, "seed": seed, "version": __version__, **standing.asdict()}, allow_nan=False)
        for standing in standings
    ]
    if args.out:
        write_file(args.out / f"{suite.name}.jsonl", "".join(f"{line}\n" for line in lines))
    for one in standings:
        if one.error:
            text = f"{one.rule}: no answer in {one.failed} of {one.rounds} rounds: it {one.error}"
            print(text, file=sys.stderr)
    if args.json:
        print("\n".join(lines))
        return 0

    from rich.console import Console

    from honestly.show.suite_table import suite_table

    console = Console()
    console.print(suite_table(suite, standings).rich(console.width))
    return 0


def make(args: argparse.Namespace) -> int:
    """Record a suite and compare it with the published one."""
    from honestly.studies import suites
    from honestly.studies.suites.make import make as record_suite
    from honestly.studies.suites.spec import compare, content_hash

    suite = suites.load(args.make_suite)

    def tell(done: int, of: int, name: str) -> None:
        if name and not args.json:
            print(f"{done + 1} of {of}: {name}", file=sys.stderr, flush=True)

    out = args.out / f"{suite.name}.npz" if args.out else None
    path, courses = record_suite(suite, out=out, folder=args.data, progress=tell)
    origin, content = compare(suite, courses), content_hash(courses)
    if args.json:
        facts = {"suite": suite.name, "spec": suite.hash, "content": content, "recording": origin.word}
        print(json.dumps({**facts, "agree": origin.agree, "rounds": origin.rounds, "others": origin.others}))
        return 0
    print(f"wrote {path}\nspec SHA-256 {suite.hash}\ncontent SHA-256 {content}\n{_origin(suite.name, origin)}")
    return 0


def _origin(name: str, origin: RecordingComparison) -> str:
    if origin.word == "published":
        return f"{name}: the published recording, to the bit"
    if not origin.rounds:
        return f"{name}: not the published specification or courses: its figures are not comparable"
    agree = f"{origin.agree} of {origin.rounds} rounds agree with it in length and variance"
    others = f", not {', '.join(origin.others[:6])}{', ...' if len(origin.others) > 6 else ''}" if origin.others else ""
    if origin.word == "equivalent":
        return f"{name}: not the published bytes (training differs between processors); {agree}{others}"
    return f"{name}: differs from the published recording, its figures are not comparable; {agree}{others}"
