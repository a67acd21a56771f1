"""A parser with suggestions for misspelt words, which accepts `key=value` words after options."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from honestly.cli.argparse_private import actions, parsers, positionals, subcommands
from honestly.hints import did_you_mean


class Parser(argparse.ArgumentParser):
    """argparse with a suggestion for a misspelt choice, and `--debug` for every command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "epilog" in kwargs:  # examples and tables keep their lines
            kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
            if "\n" not in kwargs.get("description", "\n"):
                kwargs["description"] = textwrap.fill(kwargs["description"], 80)
        super().__init__(*args, **kwargs)
        # suppressed: a sub-command's default must not override an option before its name
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )

    def error(self, message: str) -> NoReturn:
        """End with exit status 2, the usage and the message."""
        # Python 3.11 quotes the choices, 3.12 does not.
        match = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)$", message)
        if match:
            choices = [choice.strip("'") for choice in match[2].split(", ")]
            hint = suggestion(match[1], choices)
            message = f"{message[: match.start()]}{match[1]!r} is none of {', '.join(choices)}{hint}"
        super().error(message)


def suggestion(word: str, words: Sequence[str]) -> str:
    """A question after a message, if one of the words is close.

    >>> suggestion("simualte", ["simulate", "rules"])
    '; did you mean simulate?'
    """
    hint = did_you_mean(word, words, cutoff=0.7).strip()
    return f"; {hint}" if hint else ""


def parse_words(top: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words. An unknown word ends the program with the usage of its sub-command.

    argparse accepts the words of `simulate FILE key=value ...` only next to each other; here they may also follow an
    option. Words after `--` are never options.
    """
    chosen, rest = top.parse_known_args(words)
    if rest:
        literal = list(words[words.index("--") + 1 :]) if "--" in words else []
        _take(rest, literal, chosen, _innermost_parser(top, chosen))
    return chosen


def _take(rest: list[str], literal: list[str], chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Words that argparse left go to the argument that takes several; for all else the parser ends the program."""
    several = [action for action in positionals(parser) if action.nargs in ("*", "+")]
    plain = len(literal) if literal and rest[-len(literal) :] == literal else 0
    maybe = rest[: len(rest) - plain]
    if plain and maybe[-1:] == ["--"]:
        maybe.pop()
    if several and not any(word.startswith("-") for word in maybe):
        getattr(chosen, several[-1].dest).extend([*maybe, *rest[len(rest) - plain :]])
        return
    wrong = next((word for word in maybe if word.startswith("-")), rest[0])
    name = wrong.partition("=")[0]
    options = [option for action in actions(parser) for option in action.option_strings]
    hint = suggestion(name, options) if name.startswith("--") else ""
    if not hint and several and "key=value" in str(several[-1].metavar) and name.startswith("--"):
        hint = f"; settings are written {name[2:].replace('-', '_')}=VALUE"
    parser.error(f"unknown {'option' if name.startswith('-') else 'argument'}: {wrong}{hint}")


def _innermost_parser(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> argparse.ArgumentParser:
    """The innermost sub-command's parser."""
    for action in subcommands(parser):
        name = getattr(chosen, action.dest, None)
        inner = parsers(action).get(str(name))
        if inner is not None:
            return _innermost_parser(inner, chosen)
    return parser
