"""`honestly aggregate` as a function."""

from __future__ import annotations

from honestly.cli import main


def run(*arguments: object) -> int:
    return main(["aggregate", *map(str, arguments)])
