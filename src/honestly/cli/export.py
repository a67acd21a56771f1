"""`honestly export`: files for other programs: the results of a study, server functions for Scaleout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from honestly.cli import export_tensorboard

STUDIES = {
    "runs": "the runs of a study, one row each, as CSV or JSON lines",
    "rounds": "the rounds of all runs of a study, one row each, as CSV or JSON lines",
    "study": "a whole study with its unfinished runs, to resume elsewhere with honestly bench --import",
}


def add(commands: Any) -> None:
    """Register `export TARGET`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write files for other programs: a study's results, server functions for Scaleout",
        description="Write files for other programs.",
    )
    targets: Any = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    scaleout: argparse.ArgumentParser = targets.add_parser(
        "scaleout",
        help="a self-contained server_functions.py for Scaleout and FEDn",
        description="Write a self-contained server_functions.py for Scaleout and FEDn. It needs NumPy only, never "
        "raises an exception, and keeps the previous model if anything fails.",
        epilog="example: honestly export scaleout -o server_functions.py --rule multi_krum:f=2",
    )
    scaleout.add_argument(
        "-o", "--out", default="server_functions.py", help="the file, or - for standard output (default: %(default)s)"
    )
    scaleout.add_argument(
        "--rule",
        default="bayesian",
        help="a rule that weighs clients, with its settings: krum:f=2 (default: %(default)s)",
    )
    scaleout.add_argument("--force", action="store_true", help="replace an existing file")
    scaleout.add_argument("settings", nargs="*", metavar="key=value", help="settings of the rule (an older spelling)")
    scaleout.set_defaults(run=run)
    export_tensorboard.add(targets)
    for what, about in STUDIES.items():
        study: argparse.ArgumentParser = targets.add_parser(what, help=about, description=f"Write {about}.")
        study.add_argument("folder", type=Path, metavar="DIR", help="the study's folder")
        endings = ".tar.gz" if what == "study" else ".csv or .jsonl, also with .gz"
        study.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help=f"the file: {endings}")
        study.set_defaults(run=run_study, extra="sim")


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    from honestly.catalog import Spec
    from honestly.rules import RULE_CATALOG
    from honestly.runs.writing import remedies
    from honestly.scaleout import server_functions

    mixers = Spec.parse_all(args.rule)[:-1]
    if mixers:
        raise ValueError(f"--rule {args.rule}: the exported file has no mixers; name the rule alone")
    source = server_functions(RULE_CATALOG.build(":".join((args.rule, *args.settings))))
    if args.out == "-":
        sys.stdout.write(source)
        return 0
    path = Path(args.out)
    if path.exists() and not args.force:
        raise ValueError(f"{path} already exists; add --force to replace it")
    with remedies(path):
        path.write_text(source, encoding="utf-8")
    print(f"{path}: pass its class ServerFunctions to start_session(server_functions=...)")
    return 0


def run_study(args: argparse.Namespace) -> int:
    """Write a study's results."""
    from honestly.runs.export import archive, export
    from honestly.runs.store import Store

    with Store.read(args.folder) as store:
        if args.target == "study":
            summary = f"the study with {archive(store, args.out)} folder(s) of runs to resume"
        else:
            summary = f"{export(store, args.target, args.out)} {args.target}"
    print(f"{args.out}: {summary}")
    return 0
