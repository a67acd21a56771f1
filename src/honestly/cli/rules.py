"""`honestly rules`: every rule and mixer, with what it needs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any


def add(commands: Any) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "rules",
        help="list every rule and mixer with what it needs",
        description="List every rule, then every mixer (applied before a rule), with the settings that it needs.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table, or JSON."""
    from honestly.rules import list_rules

    listed = list_rules()
    if args.json:
        json.dump([asdict(info) for info in listed], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0

    from honestly.show.terminal import TerminalTable

    columns = ["name", "what it does", "settings", "needs", "honesty", "streams", "reference"]
    rows = [
        [
            info.name if info.kind == "rule" else f"{info.name} (mixer)",
            info.summary,
            ", ".join(info.settings),
            ", ".join(info.needs) or "nothing",
            "yes" if info.infers_honesty else "",
            "yes" if info.streams else "",
            info.reference,
        ]
        for info in listed
    ]
    TerminalTable(columns, rows).show()
    print("streams: avoids K² d work for thousands of clients")
    return 0
