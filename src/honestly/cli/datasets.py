"""`honestly datasets`: which data sets there are, and where they are on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "datasets",
        help="list the data sets, or download one",
        description="List the data sets and where they are on this machine. Data sets that you name are "
        "downloaded if they are missing.",
    )
    parser.add_argument("fetch", nargs="*", metavar="NAME", help="download these if they are missing")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the data sets are (default: $HONESTLY_DATA)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, extra="sim")


def run(args: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    from honestly.sim.data import DATASETS, load

    for name in args.fetch:
        load(name, args.data)
    rows: list[dict[str, Any]] = []
    for name, source in DATASETS.items():
        place = source.find(args.data)
        rows.append({"name": name, "summary": source.summary, "where": None if place is None else str(place)})
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    from honestly.show.terminal import TerminalTable

    def where(row: dict[str, Any]) -> str:
        return "comes with the package" if row["name"] == "digits" else row["where"] or "not here: downloaded when used"

    TerminalTable(["name", "what", "where"], [[row["name"], row["summary"], where(row)] for row in rows]).show()
    return 0
