"""`honestly attacks`: every attack, what it knows, what it costs and its settings."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "attacks",
        help="list every attack",
        description="List every attack: what it does, what it knows, what it costs, its settings.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    from honestly.sim.attacks import KNOWS, DataAttack, UpdateAttack, attacks, settings_of

    rows: list[dict[str, Any]] = [
        {
            "name": attack.name,
            "summary": attack.summary,
            "on": [k for k, kind in (("data", DataAttack), ("updates", UpdateAttack)) if issubclass(attack, kind)],
            "knows": attack.knows,
            "identical": attack.identical,
            "training": attack.training,
            "keeps": attack.keeps,
            "settings": settings_of(attack),
            "reference": attack.reference,
        }
        for attack in attacks()
    ]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    from honestly.show.terminal import TerminalTable

    columns = ["name", "what it does", "on", "knows", "training", "keeps", "settings", "reference"]
    table = [
        [
            row["name"],
            row["summary"],
            " and ".join(row["on"]),
            KNOWS[row["knows"]],
            f"{row['training']:g} x",
            row["keeps"],
            ", ".join(f"{key}={value}" for key, value in row["settings"].items()),
            row["reference"],
        ]
        for row in rows
    ]
    TerminalTable(columns, table).show()
    return 0
