"""`honestly datasets`: which data sets there are, and where they are on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(commands: argparse._SubParsersAction[Any]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Register the command."""
    parser = commands.add_parser("datasets", help="list the data sets, or download one", description=__doc__)
    parser.add_argument("fetch", nargs="*", metavar="NAME", help="download these (mnist, fmnist, cifar10)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the data sets are (default: $HONESTLY_DATA)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    try:
        from honestly.sim.data import DATASETS, load
    except ImportError as error:
        print(f"honestly datasets: {error.name} is missing: pip install 'honestly[sim]'", file=sys.stderr)
        return 2
    try:
        for name in args.fetch:
            load(name, args.data)
    except (ValueError, OSError) as error:
        print(f"honestly datasets: {error}", file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    for name, source in DATASETS.items():
        place = source.found(args.data)
        rows.append({"name": name, "summary": source.summary, "where": None if place is None else str(place)})
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what", "where")
    for row in rows:
        where = (
            "comes with the package" if row["name"] == "digits" else row["where"] or "not here: downloaded when used"
        )
        table.add_row(row["name"], row["summary"], where)
    Console().print(table)
    return 0
