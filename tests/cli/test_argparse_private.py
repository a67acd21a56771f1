"""Undocumented behaviour of argparse that we use: a failure shows what a new Python changed and what depends on it."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

import honestly.cli
from honestly.cli import argparse_private as private

COST = "completion and suggestions for misspelt options need it (honestly/cli/argparse_private.py)"


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="top")
    top.add_argument("--out", help="somewhere")
    top.add_argument("words", nargs="*")
    inner = top.add_subparsers(dest="command")
    inner.add_parser("go", help="start").add_argument("--fast", action="store_true")
    return top


@pytest.mark.parametrize("name", ["_actions", "_get_positional_actions", "_option_string_actions"])
def test_a_parser_still_has(parser: argparse.ArgumentParser, name: str) -> None:
    assert hasattr(parser, name), f"ArgumentParser.{name} has gone: {COST}"


def test_argparse_still_has_a_class_for_subcommands() -> None:
    assert hasattr(argparse, "_SubParsersAction"), f"argparse._SubParsersAction has gone: {COST}"


def test_they_mean_what_we_think(parser: argparse.ArgumentParser) -> None:
    assert [action.dest for action in private.actions(parser)] == ["help", "out", "words", "command"]
    assert [action.dest for action in private.positionals(parser)] == ["words", "command"]
    found = private.option(parser, "--out")
    assert found is not None
    assert found.dest == "out"
    assert private.option(parser, "--nothing") is None
    (commands,) = private.subcommands(parser)
    assert private.option(private.parsers(commands)["go"], "--fast") is not None
    assert private.summaries(commands) == {"go": "start"}


def test_nobody_else_uses_them() -> None:
    folder = Path(honestly.cli.__file__).parent
    users = [
        file.name
        for file in folder.glob("*.py")
        if re.search(r"argparse\._|\._(actions|option_string_actions|get_positional_actions)\b", file.read_text())
    ]
    assert users == ["argparse_private.py"]
