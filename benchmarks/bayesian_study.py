"""Measure rules on recorded updates, layer by layer, using only Gram matrices.

    python benchmarks/bayesian_study.py                                     every part, the default rule
    python benchmarks/bayesian_study.py --rule bayesian whole_updates geometric_median --parts whole,quiet,time
    python benchmarks/bayesian_study.py --rule file.py:function             a function of (L, K, K) Gram matrices

Recordings by layer (`honestly stress --record`) are read from --grams or from $HONESTLY_DATA/grams; if there are none,
the recording of the package is used. kappa is |aggregate - honest mean|^2 / honest variance, and "worst layer" is the
kappa of the layer where it is largest. "missed" counts attackers that were not accused, and "accused" counts honest
clients that were, per round.
"""

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

from study.common import Settings
from study.parts import PARTS
from study.populations import folder
from study.rules import entry

from honestly.show.tables import Table


def as_text(columns, rows):
    """A table for a terminal."""
    widths = [max(len(str(row[i])) for row in (columns, *rows)) for i in range(len(columns))]
    return "\n".join(
        "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (columns, *rows)
    )


def fill(page, parts):
    """Replace the text between `<!-- NAME -->` and `<!-- /NAME -->` on a page; other marks stay unchanged."""
    for name, part in parts.items():
        before, start, rest = page.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        page = f"{before}{start}\n{part.strip()}\n{end}{after}" if end else page
    return page


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rule", nargs="+", default=["bayesian"], metavar="RULE")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--grams", type=Path, help="folder of recordings (default: $HONESTLY_DATA/grams)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each course under fixed attacks (default: 4)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only courses whose name contains the text")
    parser.add_argument("--malicious", default="1,2,4,6,8,9", help="numbers of attackers (default: 1,2,4,6,8,9)")
    parser.add_argument("--tries", type=int, default=240, help="attempts of the adaptive attacker (default: 240)")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of the adaptive attacker (default: 2)")
    parser.add_argument("--details", action="store_true", help="also print a row for each attack")
    parser.add_argument("--recorded", type=Path, help="folder of recorded updates, for the part `updates`")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes for the part `updates`")
    parser.add_argument("--page", type=Path, help="write each table between its marks, <!-- PART -->, on this page")
    parser.add_argument("--out", type=Path, help="write tables (Markdown) and cases (JSON lines) here")
    args = parser.parse_args()
    rules = [entry(word) for word in args.rule]
    settings = Settings(
        where=folder(args.grams),
        rounds=args.rounds,
        only=args.only,
        malicious=tuple(int(M) for M in args.malicious.split(",")),
        tries=args.tries,
        seeds=args.seeds,
        details=args.details,
        recorded=args.recorded,
        jobs=args.jobs,
    )
    parts = {"machine": f"{platform.machine()}, Python {platform.python_version()}, NumPy {version('numpy')}"}
    for part in args.parts.split(","):
        if part not in PARTS:
            parser.error(f"--parts {part}: one of {', '.join(PARTS)}")
        start = time.perf_counter()
        columns, rows = PARTS[part](rules, settings)
        seconds = time.perf_counter() - start
        title = (PARTS[part].__doc__ or part).splitlines()[0]
        print(f"\n== {part}: {title} ({seconds:.0f} s)\n{as_text(columns, rows)}", flush=True)
        parts[part] = Table(part, title.rstrip("."), "", list(columns), [list(row) for row in rows]).markdown()
    if args.page:
        args.page.write_text(fill(args.page.read_text(), parts))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "study.md").write_text("\n".join(parts.values()))
        (args.out / "cases.jsonl").write_text("".join(json.dumps(record) + "\n" for record in settings.records))


if __name__ == "__main__":
    main()
