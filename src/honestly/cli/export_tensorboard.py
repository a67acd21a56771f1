"""`honestly export tensorboard`: runs as event files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(targets: Any) -> None:
    """Register the target."""
    parser: argparse.ArgumentParser = targets.add_parser(
        "tensorboard",
        help="a study, a run or a federation's history as TensorBoard event files",
        description="Write the numbers of every run as scalars, and who attacked, was believed and was accused as "
        "images. View them with: tensorboard --logdir LOGDIR",
        epilog="example: honestly export tensorboard runs/a -o logs",
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="DIR", help="a study, a run, or a history")
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="LOGDIR", help="the folder for the event files"
    )
    parser.set_defaults(run=run, extra="tensorboard")


def run(args: argparse.Namespace) -> int:
    """Write the files and say how many."""
    from honestly.show.report.sources import load, merge
    from honestly.show.tensorboard import export

    studies = merge([load(source) for source in args.sources])
    files = export(studies, args.out)
    print(f"{len(files)} runs in {args.out}; look at them with: tensorboard --logdir {args.out}")
    return 0
