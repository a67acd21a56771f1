"""`honestly rules`: every rule and mixer, with what it needs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any


def add(commands: argparse._SubParsersAction[Any]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Register the sub-command."""
    parser = commands.add_parser(
        "rules",
        help="list every rule and mixer with what it needs",
        description="Every rule, then every mixer (used in front of a rule), with what it has to be told.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table, or JSON."""
    from honestly.rules import rules

    listed = rules()
    if args.json:
        json.dump([asdict(info) for info in listed], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0

    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, caption="streams: avoids K² d work for thousands of clients")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("what it does")
    table.add_column("settings")
    table.add_column("needs")
    table.add_column("honesty")
    table.add_column("streams")
    table.add_column("reference", style="dim")
    kind = listed[0].kind
    for info in listed:
        if info.kind != kind:
            table.add_section()
            kind = info.kind
        table.add_row(
            info.name if info.kind == "rule" else f"{info.name} (mixer)",
            info.summary,
            ", ".join(info.settings),
            ", ".join(info.needs) or "nothing",
            "yes" if info.infers_honesty else "",
            "yes" if info.streams else "",
            info.reference,
        )
    # A pipe or file has no width: names must not be cut there.
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0
