"""Evaluate every rule on the suites, and write docs/results/leaderboard.md.

    python benchmarks/leaderboard.py [--suites small-1,core-1,images-1] [--data FOLDER] [--jobs N] [--rules RULE ...]
    python benchmarks/leaderboard.py --page

Writes one JSON line per suite and rule to results/leaderboard/standings.jsonl, as `honestly stress --suite NAME --json`
prints it, and the commit that made it. A line of the same code and the same suite is not computed again, so the script
can be stopped at any time and continues. First create a suite that is not in the package with
`honestly stress --make-suite NAME`.
"""

import study  # noqa: F401 - limits threads, before NumPy is loaded: processor time counts all of them

# isort: split
import argparse
import json
import os
import platform
import sys
import time
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from code_version import code_hash, commit
from finished_runs import read_runs

from honestly._version import __version__
from honestly.bars import Bars
from honestly.rules import RULE_CATALOG
from honestly.show.suite_table import rank, suite_table
from honestly.show.tables import Table, fill, text
from honestly.studies.suites import SUITES, Standing, judge, load
from honestly.studies.suites.entries import all_rules
from honestly.studies.suites.spec import compare, content_hash, open_courses
from honestly.studies.suites.standings import CAP

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "leaderboard.md"
OUT = ROOT / "results" / "leaderboard"
OURS = "bayesian"
#: The code that decides a line of a rule of the package; the rest measures updates, trains, reads, writes and presents.
CODE = (
    *("engine/pipeline.py", "kernels/bayesian", "rules", "sim/attacks/alie.py", "sim/attacks/min_max.py"),
    *("studies/layers", "studies/recordings.py", "studies/specs.py", "studies/suites/judge.py"),
    *("studies/suites/own.py", "studies/suites/spec.py", "studies/suites/standings.py"),
)
#: Rules with settings, and rules behind mixers.
MORE = (
    *("bayesian:variant=paper", "nnm+geometric_median", "nnm+multi_krum", "nnm+trimmed_mean"),
    *("bucketing+geometric_median", "arc+geometric_median"),
)
#: Inputs that some rules need and a suite does not have.
MISSING = {
    "root": "needs a trusted root update",
    "trusted client": "needs to know a trusted client",
    "buffers": "needs BatchNorm's running statistics, and a suite holds inner products of parameters alone",
}
#: Rules whose results on a suite would say nothing about them.
UNJUDGED = {
    "fl_detector": "learns from ten rounds before it judges; in single rounds it is the mean",
    "deep_sight": "reads which outputs of the last layer a client moved, and stand-ins have random axes instead of "
    "outputs; see [Newer attacks](newer-attacks.md) for training with it",
    "rodiloco": "compares clients with the averages of earlier rounds; in single rounds it is the geometric median",
}


def missing_inputs(name):
    """Why a suite cannot evaluate a rule: the inputs that it does not have."""
    return [why for need, why in MISSING.items() if need in RULE_CATALOG[name].needs]


def rules():
    """Every rule of the package that a suite can evaluate, and some combinations."""
    return [*(spec for spec in all_rules() if spec not in UNJUDGED), *MORE]


def not_judged():
    """The rules that no suite can evaluate, each with the reason."""
    return UNJUDGED | {name: ", ".join(missing_inputs(name)) for name in RULE_CATALOG if missing_inputs(name)}


def evaluate(suite, facts, rule, args, bars):
    """The line of one rule."""
    bar = bars.add(f"{suite.name} {rule}")
    start = time.process_time()
    (result,) = judge(
        suite, [rule], jobs=args.jobs, folder=args.data, progress=lambda n, of: bars.update(bar, done=n, total=of)
    )
    return {**facts, "cost": round(time.process_time() - start, 1), **result.asdict()}


def judge_all(lines, file, args):
    """Evaluate what is missing or was made by other code; every finished line is kept."""
    code, version = code_hash(*CODE), commit()
    with Bars(stderr=True) as bars:
        for name in args.suites.split(","):
            suite = load(name)
            courses = open_courses(suite, args.data)
            facts = {
                "suite": name, "spec": suite.hash, "content": content_hash(courses),
                "recording": compare(suite, courses).word, "seed": 0, "version": __version__, "code": code,
            }  # fmt: skip
            for rule in args.rules or rules():
                known = [line for line in lines if (line["suite"], line["rule"]) == (name, rule)]
                if any(line.items() >= facts.items() for line in known):
                    continue
                line = evaluate(suite, facts | {"commit": version}, rule, args, bars)
                lines = [other for other in lines if other not in known] + [line]
                draft = file.with_suffix(".new")
                draft.write_text("".join(json.dumps(line) + "\n" for line in lines))
                draft.replace(file)
                print(f"{name} {rule}: {line['cost']:.0f} s of processor time", flush=True)
    return lines


def standing_of(line):
    """Convert a line to a `Standing`; None means an unbounded number if the rule returned a result."""
    row = {field.name: line[field.name] for field in fields(Standing)}
    for name in (
        "mean",
        "mean_layer",
        "uncapped",
        "uncapped_layer",
        "worst",
        "worst_layer",
        "adaptive",
        "adaptive_layer",
    ):
        if row[name] is None and row["rounds"] > row["failed"]:
            row[name] = float("inf")
    return Standing(**row)


def place_of_ours(standings):
    """The place of the default rule in each column, and the rules ahead of it."""
    columns = {
        "mean_layer": "mean of the worst layer", "median_layer": "median of the worst layer",
        "adaptive_layer": "worst case, worst layer", "mean": "mean of the whole update",
        "median": "median of the whole update", "adaptive": "worst case, whole update",
        "accused_quiet": "false accusations in %, nobody lies", "accused": "false accusations in %, attacked",
        "missed": "attackers missed in %", "milliseconds": "milliseconds",
    }  # fmt: skip
    ours = next((s for s in standings if s.rule == OURS), None)
    if ours is None:
        return ""
    lines = []
    for name, words in columns.items():
        value = getattr(ours, name)
        ahead = [s for s in standings if s.rule != OURS and getattr(s, name) is not None and getattr(s, name) < value]
        uninformed = [s for s in ahead if s.told == "nothing"]
        informed = [s for s in ahead if s.told != "nothing"]
        groups = [f"{len(group)} {label} ({', '.join(s.rule for s in group[:4])}{', ...' if len(group) > 4 else ''})"
                for group, label in ((uninformed, "told nothing"), (informed, "told f")) if group]  # fmt: skip
        lines.append(f"- {words}: {text(value)}; better: {' and '.join(groups) or 'none'}.")
    return "\n".join(lines)


def caps(standings):
    """The means with and without the cap, for the rules that it affects."""
    rows = [
        [s.rule, s.capped, s.mean_layer, s.uncapped_layer, s.mean, s.uncapped]
        for s in standings
        if s.capped or s.uncapped != s.mean
    ]
    columns = ["rule", "rounds capped %", "mean, layer", "without cap", "mean", "without cap "]
    return Table("caps", "Rules with a round above the cap", "", columns, rows).markdown()


def stand_ins(result):
    """Results on real coordinates and on stand-ins, from benchmarks/stand_ins.py."""
    rows = []
    for rule, pairs in result.items():
        real, other = np.array(pairs).T
        low, high = np.quantile((other + 1e-3) / (real + 1e-3), (0.1, 0.9))
        medians = [float(np.median(values)) for values in (real, other)]
        means = [float(np.mean(np.minimum(values, CAP))) for values in (real, other)]
        rows.append([rule, len(real), *medians, *means, f"{low:.2f} to {high:.2f}"])
    columns = ["rule", "rounds", "median, real", "median, stand-ins", "mean, real", "mean, stand-ins", "ratio, 80 %"]
    note = "Kappa of the worst layer, and the ratio of stand-ins to real coordinates in the middle 80 % of the rounds."
    return Table("s", "Real coordinates and stand-ins", note, columns, rows).markdown()


def with_commits(table, lines):
    """The table with a last column that names the commit of each row."""
    commits = {line["rule"]: line.get("commit", "unknown") for line in lines}
    rows = [[*row, commits[row[0]]] for row in table.rows]
    return replace(table, columns=(*table.columns, "commit"), rows=rows)


def costs(lines):
    """The processor time of the lines that say it."""
    known = [line["cost"] for line in lines if "cost" in line]
    return f"{sum(known) / 60:.0f} minutes of processor time for {len(known)} of {len(lines)} rows."


def write_page(lines):
    parts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"NumPy {version('numpy')}, honestly {', '.join(sorted({line['version'] for line in lines}))}. "
        "Others were using the machine.",
        "unjudged": "\n".join(f"- `{name}`: {why}." for name, why in not_judged().items()),
        "stand-ins": stand_ins(json.loads((OUT / "stand-ins.json").read_text())),
    }
    for name in SUITES:
        suite = load(name)
        rows = [line for line in lines if line["suite"] == name]
        if not rows:
            parts |= dict.fromkeys((name, *(f"{name}-{part}" for part in ("ours", "caps", "facts"))), "Not judged yet.")
            continue
        standings = rank([standing_of(line) for line in rows])
        origin = {line["recording"] for line in rows}
        missing = [rule for rule in rules() if rule not in {line["rule"] for line in rows}]
        parts[name] = with_commits(suite_table(suite, standings), rows).markdown()
        parts[f"{name}-ours"] = place_of_ours(standings)
        parts[f"{name}-caps"] = caps(standings)
        parts[f"{name}-facts"] = (
            f"{len(rows)} rules. Recording: {', '.join(sorted(origin))}; specification SHA-256 `{suite.hash[:16]}`, "
            f"content `{rows[0]['content'][:16]}`; {max(s.rounds for s in standings)} attacked or quiet rounds for "
            f"each rule, and {suite.tries} tries of the adaptive attacker in each round for each of its two goals."
            + (f" Not judged yet: {', '.join(missing)}." if missing else "")
            + f" {costs(rows)}"
        )
    PAGE.write_text(fill(PAGE.read_text(), parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--suites", default="small-1,core-1,images-1")
    parser.add_argument("--data", type=Path, help="folder of suites that are not in the package")
    parser.add_argument("--rules", nargs="+")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="only write the page from the existing lines")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "standings.jsonl"
    lines = read_runs(file)
    if not args.page:
        try:
            lines = judge_all(lines, file, args)
        except KeyboardInterrupt:
            print(f"stopped; {file} has the finished lines, run the same command to continue", file=sys.stderr)
            return 130
    write_page(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
