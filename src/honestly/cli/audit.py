"""`honestly audit`: verify that a federation's history was not changed."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

EPILOG = """\
exit status: 0 if no line was changed, 1 if one was, or if there is nothing to verify

Each line of rounds.jsonl has its own hash and the hash of the line before it. They reveal lines that were changed,
removed, inserted or reordered. They cannot reveal that the last lines were removed, or that somebody recomputed the
whole chain. To detect that, store the head that this command prints (the "hash" of the last line) where the server
cannot write, and pass it with --head the next time.

examples:
  honestly audit runs/history
  honestly audit runs/history --head 5f2c...
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "audit",
        help="verify that a federation's history was not changed",
        description="Verify the chain of hashes in a federation's rounds.jsonl and name the first broken line.",
        epilog=EPILOG,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the history's folder, or one rounds.jsonl")
    parser.add_argument(
        "--head", metavar="HASH", type=_hash, help="a hash from an earlier audit, which must still be in the chain"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Verify and say what was found."""
    from honestly.federation.audit import audit

    if not args.folder.exists():
        raise FileNotFoundError(2, "does not exist; give the folder of a federation's history", str(args.folder))
    report = audit(args.folder)
    problem = report.broken
    if not problem and not report.rounds:
        problem = f"{args.folder} has no rounds.jsonl, or an empty one: there is nothing to verify"
    elif not problem and report.unsealed:
        who = "a simulation or an older version wrote them; a federation's history has one on every line"
        problem = f"{report.unsealed} of {report.rounds} lines have no hash ({who})"
    if not problem and args.head is not None and args.head not in report.heads:
        problem = f"the chain does not contain {args.head}: lines were removed since, or all hashes recomputed"
    if args.json:
        facts = {
            "sound": not problem,
            "problem": problem,
            "files": report.files,
            "rounds": report.rounds,
            "head": report.head,
        }
        print(json.dumps(facts, indent=1))
    elif problem:
        print(f"not sound: {problem}", file=sys.stderr)
    else:
        files = "" if len(report.files) == 1 else f" in {len(report.files)} files"
        print(f"sound: {report.rounds} round{'s' * (report.rounds != 1)}{files}")
        print(f"head: {report.head}")
        if args.head is None:
            print("The chain cannot show that its last lines were removed: store the head and pass it with --head.")
    return 1 if problem else 0


def _hash(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a hash of 64 hexadecimal digits")
    return text
