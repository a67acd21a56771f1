"""`honestly stress --suite`, `--submit` and `--make-suite`: rules judged by a named suite, and suites made."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

#: Who is judged unless rules are named: those that look at inner products alone.
USUAL = (
    *("bayesian", "bayesian:variant=paper", "geometric_median", "centered_clipping", "mean", "multi_krum", "krum"),
    *("nnm+geometric_median", "nnm+multi_krum"),
)


def add(parser: Any) -> None:
    """The options."""
    parser.add_argument("--suite", metavar="NAME", help="judge the rules by a named suite: small-1, core-1")
    parser.add_argument(
        "--submit",
        action="append",
        metavar="FILE.py:RULE",
        help="judge a rule of your own by the suite (default: small-1); this runs the file",
    )
    parser.add_argument("--make-suite", metavar="NAME", help="train and record a named suite, and stop")


def run(args: argparse.Namespace, rules: Sequence[str] | None) -> int:
    """Judge, and show one line for each rule."""
    from honestly._version import __version__
    from honestly.studies import suites
    from honestly.studies.suites.spec import compare, content_hash, open_courses

    suite = suites.load(args.suite or "small-1")
    judged = tuple(dict.fromkeys([*(args.submit or ()), *(rules or (() if args.submit else USUAL))]))
    courses = open_courses(suite, args.data)
    origin = compare(suite, courses)
    if origin != "published":
        print(_origin(suite.name, origin), file=sys.stderr)
    shown = sys.stderr.isatty() and not args.json

    def tell(done: int, of: int) -> None:
        end = "\n" if done == of else ""
        print(f"\r{suite.name}: {done} of {of} rounds", end=end, file=sys.stderr, flush=True)

    seed = args.seeds[0][0]
    found = suites.judge(suite, judged, seed=seed, jobs=args.jobs, folder=args.data, progress=tell if shown else None)
    facts = {"suite": suite.name, "spec": suite.hash, "content": content_hash(courses), "recording": origin}
    lines = [
        json.dumps({**facts, "seed": seed, "version": __version__, **standing.asdict()}, allow_nan=False)
        for standing in found
    ]
    if args.out:
        (args.out / f"{suite.name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if args.json:
        print("\n".join(lines))
        return 0

    from rich.console import Console

    from honestly.show.suite_table import suite_table

    console = Console()
    console.print(suite_table(suite, found).rich(console.width))
    for standing in found:
        if standing.error:
            text = f"{standing.rule}: no answer in {standing.failed} of {standing.rounds} rounds: it {standing.error}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def make(args: argparse.Namespace) -> int:
    """Record a suite and compare it with the published one."""
    from honestly.studies import suites
    from honestly.studies.suites.spec import compare, content_hash

    suite = suites.load(args.make_suite)

    def tell(done: int, of: int, name: str) -> None:
        if name and not args.json:
            print(f"{done + 1} of {of}: {name}", file=sys.stderr, flush=True)

    out = args.out / f"{suite.name}.npz" if args.out else None
    path, courses = suites.make(suite, out=out, folder=args.data, progress=tell)
    origin, content = compare(suite, courses), content_hash(courses)
    if args.json:
        print(json.dumps({"suite": suite.name, "spec": suite.hash, "content": content, "recording": origin}))
        return 0
    print(f"wrote {path}\nspec SHA-256 {suite.hash}\ncontent SHA-256 {content}\n{_origin(suite.name, origin)}")
    return 0


def _origin(name: str, origin: str) -> str:
    return {
        "published": f"{name}: the published recording, to the bit",
        "equivalent": f"{name}: not the published bytes (training differs between processors), but lengths and "
        "variances agree: say so beside the figures",
        "different": f"{name}: lengths or variances differ from the published recording: its figures are not "
        "comparable",
    }[origin]
