# pyright: reportPrivateUsage=false
"""All uses of argparse beyond its public interface, in one place.

argparse does not say which arguments a parser has. Completion, suggestions for misspelt options, words that follow
options and the page about the command line need to know. `tests/cli/test_argparse_private.py` fails and names what is
missing; the commands themselves would still work, without completion and suggestions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any


def actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Every argument of the parser, options first."""
    return parser._actions


def positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments without a name."""
    return parser._get_positional_actions()


def option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """The argument that an option such as `--out` stands for."""
    return parser._option_string_actions.get(word)


def subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments that lead to parsers of their own."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield action


def parsers(action: argparse.Action) -> dict[str, Any]:
    """The parsers that such an argument leads to, by name."""
    choices: Any = action.choices
    return dict(choices)


def summaries(action: argparse.Action) -> dict[str, str]:
    """The line of help for each of these parsers, by name."""
    listed: Any = action
    return {one.dest: one.help or "" for one in listed._choices_actions}
