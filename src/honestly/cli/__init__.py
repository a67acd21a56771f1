"""The command `honestly`: one file per sub-command, loaded only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from honestly._version import __version__
from honestly.result import AggregationError

# Sub-commands in the order in which a newcomer needs them.
COMMANDS = ("demo", "aggregate", "simulate", "bench", "stress", "export", "rules", "attacks", "datasets")

EXTRA_OF = {"rich": "cli", "matplotlib": "cli", "pydantic": "sim", "torch": "sim", "ray": "ray"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; the exit status is 0 only on success."""
    parser = argparse.ArgumentParser(
        prog="honestly", description="Robust averaging for federated learning: it tells which clients to believe."
    )
    parser.add_argument("--version", action="version", version=f"honestly {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"honestly.cli.{name}").add(commands)
    chosen = parser.parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except KeyboardInterrupt:
        print("honestly: stopped", file=sys.stderr)
        return 130
    except ModuleNotFoundError as missing:
        extra = EXTRA_OF.get((missing.name or "").split(".")[0])
        if extra is None:
            raise
        print(f"honestly: {missing.name} is missing; install it with: pip install 'honestly[{extra}]'", file=sys.stderr)
    except (AggregationError, ValueError, OSError) as error:
        print(f"honestly: {error}", file=sys.stderr)
    return 1
