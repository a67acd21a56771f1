"""Measure rules on recorded updates, layer by layer, where nothing but Gram matrices is needed.

    python benchmarks/bayesian_study.py                                     every part, the default rule
    python benchmarks/bayesian_study.py --rule bayesian whole_updates geometric_median --parts whole,quiet,time
    python benchmarks/bayesian_study.py --rule file.py:function             a function of (L, K, K) Gram matrices

Recordings (`honestly stress --record`) are read from --grams, or from $HONESTLY_DATA/grams. kappa is
|aggregate - honest mean|^2 / honest variance; "accused" are honest clients per round.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # matrices of 20 x 20 gain nothing from threads
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from study.parts import PARTS, Settings
from study.populations import folder
from study.rules import entry

from honestly.bench.tables import Table


def shown(columns, rows):
    """A table for a terminal."""
    widths = [max(len(str(row[i])) for row in (columns, *rows)) for i in range(len(columns))]
    return "\n".join(
        "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (columns, *rows)
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rule", nargs="+", default=["bayesian"], metavar="RULE")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--grams", type=Path, help="folder of recordings (default: $HONESTLY_DATA/grams)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each course under fixed attacks (default: 4)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only courses whose name holds the text")
    parser.add_argument("--malicious", default="1,2,4,6,8,9", help="numbers of attackers (default: 1,2,4,6,8,9)")
    parser.add_argument("--tries", type=int, default=240, help="of the adaptive attacker (default: 240)")
    parser.add_argument("--seeds", type=int, default=2, help="of the adaptive attacker (default: 2)")
    parser.add_argument("--details", action="store_true", help="also a row for each attack")
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
    )
    pages = [f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}\n"]
    for part in args.parts.split(","):
        if part not in PARTS:
            parser.error(f"--parts {part}: one of {', '.join(PARTS)}")
        start = time.perf_counter()
        columns, rows = PARTS[part](rules, settings)
        seconds = time.perf_counter() - start
        title = (PARTS[part].__doc__ or part).splitlines()[0]
        print(f"\n== {part}: {title} ({seconds:.0f} s)\n{shown(columns, rows)}", flush=True)
        pages.append(Table(part, title, "", list(columns), [list(row) for row in rows]).markdown())
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "study.md").write_text("\n".join(pages))
        (args.out / "cases.jsonl").write_text("".join(json.dumps(record) + "\n" for record in settings.records))


if __name__ == "__main__":
    main()
