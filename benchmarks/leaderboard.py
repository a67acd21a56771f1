"""Judge every rule that works on inner products by the suites, and write docs/results/leaderboard.md.

    python benchmarks/leaderboard.py --out leaderboard [--suites small-1,core-1] [--data FOLDER] [--jobs N]
    python benchmarks/leaderboard.py --out leaderboard --page

One JSON line for each suite and rule in OUT/standings.jsonl, as `honestly stress --suite NAME --json` prints it; what
is there is not judged again (--again RULE judges it anew). core-1 is made by `honestly stress --make-suite core-1`.
"""

import argparse
import json
import os
import platform
import time
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

from honestly._version import __version__
from honestly.show.suite_table import rank, suite_table
from honestly.show.tables import fill, text
from honestly.studies.suites import Standing, judge, load
from honestly.studies.suites.spec import compare, content_hash, open_courses

PAGE = Path(__file__).parents[1] / "docs" / "results" / "leaderboard.md"
OURS = "bayesian"
RULES = (
    *("bayesian", "mean", "geometric_median", "multi_krum", "bayesian:variant=paper", "centered_clipping"),
    *("nnm+geometric_median", "krum", "flame", "nnm+multi_krum", "norm_clipping", "clipped_clustering", "foolsgold"),
    *("cge", "caf", "dnc", "smoothed_geometric_median", "bucketing+geometric_median", "minimum_variance:work=20000"),
)


def judged(suite, rule, args):
    """The line of one rule."""
    courses = open_courses(suite, args.data)
    start = time.perf_counter()
    (found,) = judge(suite, [rule], jobs=args.jobs, folder=args.data)
    print(f"{suite.name} {rule}: {time.perf_counter() - start:.0f} s", flush=True)
    facts = {"suite": suite.name, "spec": suite.hash, "content": content_hash(courses)}
    return {**facts, "recording": compare(suite, courses), "version": __version__, **found.asdict()}


def standing_of(line):
    """A line as `Standing`; None stands for a number without bound where the rule answered."""
    row = {field.name: line[field.name] for field in fields(Standing)}
    for name in ("mean", "mean_layer", "worst", "worst_layer", "adaptive", "adaptive_layer"):
        if row[name] is None and row["rounds"] > row["failed"]:
            row[name] = float("inf")
    return Standing(**row)


def place_of_ours(standings):
    """Where the default rule stands in each column, and who is ahead of it."""
    columns = {
        "mean": "mean of the whole update", "mean_layer": "mean of the worst layer",
        "adaptive": "adaptive attacker, whole update", "adaptive_layer": "adaptive attacker, worst layer",
        "accused_quiet": "false accusations if nobody lies", "missed": "attackers missed", "milliseconds": "time",
    }  # fmt: skip
    ours = next((s for s in standings if s.rule == OURS), None)
    if ours is None:
        return ""
    lines = []
    for name, words in columns.items():
        value = getattr(ours, name)
        ahead = [s for s in standings if s.rule != OURS and getattr(s, name) is not None and getattr(s, name) < value]
        alone = [s for s in ahead if s.told == "nothing"]
        told = [s for s in ahead if s.told != "nothing"]
        said = [f"{len(group)} {label} ({', '.join(s.rule for s in group[:4])}{', ...' if len(group) > 4 else ''})"
                for group, label in ((alone, "told nothing"), (told, "told f")) if group]  # fmt: skip
        lines.append(f"- {words}: {text(value)}; ahead of it: {' and '.join(said) or 'nobody'}.")
    return "\n".join(lines)


def write_page(lines):
    parts = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
             f"NumPy {version('numpy')}, honestly {__version__}."}  # fmt: skip
    for name in dict.fromkeys(line["suite"] for line in lines):
        suite = load(name)
        rows = [line for line in lines if line["suite"] == name]
        standings = rank([standing_of(line) for line in rows])
        origin = {line["recording"] for line in rows}
        parts[name] = suite_table(suite, standings).markdown()
        parts[f"{name}-ours"] = place_of_ours(standings)
        parts[f"{name}-facts"] = (
            f"Recording: {', '.join(sorted(origin))}; specification SHA-256 `{suite.hash[:16]}`, content "
            f"`{rows[0]['content'][:16]}`; {max(s.rounds for s in standings)} attacked or quiet rounds, {suite.tries} "
            "tries of the adaptive attacker against each rule in each round for each of its two goals."
        )
    PAGE.write_text(fill(PAGE.read_text(), parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--suites", default="small-1")
    parser.add_argument("--data", type=Path, help="where suites that are not in the package are")
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--again", nargs="+", default=(), metavar="RULE")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="write the page from the lines there are, and stop")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "standings.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    if not args.page:
        for name in args.suites.split(","):
            suite = load(name)
            for rule in args.rules:
                known = [line for line in lines if (line["suite"], line["rule"]) == (name, rule)]
                if known and known[-1]["spec"] == suite.hash and rule not in args.again:
                    continue
                lines = [line for line in lines if line not in known] + [judged(suite, rule, args)]
                file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if args.page:
        write_page(lines)


if __name__ == "__main__":
    main()
