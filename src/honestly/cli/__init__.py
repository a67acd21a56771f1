"""The command `honestly`: one file per sub-command, loaded only when it is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from honestly._version import __version__
from honestly.cli.failures import INTERRUPTED, complain, ending, escape_what_cannot_be_printed
from honestly.cli.parser import Parser, parse_words

# Sub-commands in the order in which a newcomer needs them.
COMMANDS = (
    "demo",
    "aggregate",
    "simulate",
    "bench",
    "report",
    "watch",
    "audit",
    "stress",
    "export",
    "rules",
    "attacks",
    "datasets",
    "doctor",
    "completion",
)

EPILOG = """\
examples:
  honestly demo                                   (needs no data; writes demo/report.html)
  honestly aggregate client-*.safetensors --reference previous.safetensors -o global.safetensors
  honestly simulate dataset=digits rounds=6 clients=10 rule=bayesian attack=sign_flip malicious=3 --out runs/a

Each command has its own --help. `honestly doctor` shows what is installed here and what is missing.
--debug or HONESTLY_DEBUG=1 shows where an error comes from.
exit status: 0 done, 1 it could not be done, 2 the command line or a setting is wrong, 130 interrupted
"""


def parser(names: Sequence[str] = COMMANDS) -> Parser:
    """The parser of the command with these sub-commands; each is loaded for it, all by default."""
    top = Parser(
        prog="honestly",
        description="Robust averaging for federated learning: it tells you which clients to believe.",
        epilog=EPILOG,
    )
    top.add_argument("--version", action="version", version=f"honestly {__version__}", help="show the version and exit")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in names:
        importlib.import_module(f"honestly.cli.{name}").add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; the exit status is 0 only on success."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with escape_what_cannot_be_printed():
        try:
            top = parser(_commands_to_load(words))
            chosen = parse_words(top, words)
        except KeyboardInterrupt:
            return complain("honestly", "interrupted", INTERRUPTED)
        if chosen.command is None:
            top.print_help(sys.stderr)
            return 2
        return ending(chosen)


def _commands_to_load(words: Sequence[str]) -> Sequence[str]:
    """The sub-commands to load: the requested one; none for the version; all for help and for an unknown word."""
    first = next((word for word in words if word != "--debug"), "")
    return (first,) if first in COMMANDS else () if first == "--version" else COMMANDS
