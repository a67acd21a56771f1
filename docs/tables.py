"""Rewrite the tables of README.md and of the docs from the code and the measurements, and the examples in the docs.

    python docs/tables.py            # rewrite them
    python docs/tables.py --check    # exit with status 1 if one of them is out of date

Each table is between `<!-- name: ... -->` and `<!-- /name -->`. Speeds are read from the JSON files that
`benchmarks/aggregation.py --json benchmarks/results/NAME.json` writes, accuracies from the CSV files that
`honestly export runs` writes. A block after `<!-- the same as examples/NAME.py -->` becomes that file.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BUSY = "The machine was busy with other work, so this is processor time, ours divided by its two threads"


def speed() -> str:
    """One table per measurement: every rule and peer as a multiple of the plain mean of the same run."""
    return "\n\n".join(_speed(json.loads(path.read_text())) for path in sorted(RESULTS.glob("aggregation-*.json")))


def _speed(outcomes: dict) -> str:
    """The kinds of kernels side by side; memory and peers are those of the first."""
    runs = outcomes.get("runs", [outcomes])
    first = runs[0]
    absolute = f" ({first['mean_ms']:.2f} ms)" if "NVIDIA" in first["machine"] else ""
    load = first.get("load")
    loaded = f"; loaded: with {load} other busy processes, relative to the mean under the same load" if load else ""
    loads = [run.get("load") or 0 for run in runs]
    if first.get("busy"):
        loads_text = f"load average {min(loads)} to {max(loads)}"
        loaded = f". {BUSY}; loaded: wall time during that other work, in turns with the mean ({loads_text})"
    names = [run.get("kernels", "honestly") if len(runs) > 1 else "honestly" for run in runs]
    heads = [head for name in names for head in ([name, "loaded"] if load else [name])]
    lines = [
        f"{first['K']:,} clients, {first['d']:,} float32 parameters, {_where(runs)}. "
        f"Time as a multiple of `X.mean(0)` of the same run{absolute}{loaded}. Extra peak memory in models:",
        "",
        f"| rule | {' | '.join(heads)} | memory | peers and other forms (memory) |",
        "|---|" + "---|" * (len(heads) + 2),
    ]
    for name in dict.fromkeys(row["rule"] for row in first["rows"]):
        tables = [{row["who"]: row for row in run["rows"] if row["rule"] == name} for run in runs]
        cells: list[str] = []
        for table in tables:
            ours = table.get("honestly")
            cells.append(f"{ours['ratio']:.1f}x" if ours else "")
            if load:
                cells.append(f"{ours['loaded']:.1f}x" if ours and ours["loaded"] else "")
        ours = tables[0].pop("honestly")
        others = ", ".join(f"{who} {row['ratio']:.1f}x ({row['memory']:.1f})" for who, row in tables[0].items())
        memory = f"{ours['memory']:.1f}" if ours["memory"] else ""
        lines.append(f"| `{name}` | {' | '.join(cells)} | {memory} | {others} |")
    return "\n".join(lines)


def _where(runs: list[dict]) -> str:
    machine, kernels = runs[0]["machine"], runs[0].get("kernels")
    return machine if len(runs) > 1 or kernels in (None, "CUDA") else f"{machine}, {kernels}"


def short_speed() -> str:
    """The README's choice of the measurement on 20 clients: common rules, with and without a compiler, and Flower."""
    runs = json.loads((RESULTS / "aggregation-cpu-20.json").read_text())["runs"]
    compiled, *plain = runs
    rows = [{(row["rule"], row["who"]): row for row in run["rows"]} for run in runs]
    without = " | ".join(f"without a compiler: {run['kernels']}" for run in plain)
    lines = [
        "Time as a multiple of `X.mean(0)`, and in brackets the extra memory in models: "
        f"{compiled['K']} clients, {compiled['d']:,} float32 parameters, {compiled['machine']} "
        f"(`benchmarks/aggregation.py`).{f' {BUSY}.' if compiled.get('busy') else ''}",
        "",
        f"| rule | {compiled['kernels']} | {without} | Flower's own |",
        "|---|---|" + "---|" * len(runs),
    ]
    for name in ("mean", "bayesian", "geometric_median", "median", "trimmed_mean", "multi_krum"):
        cells = [_time(run.get((name, "honestly"))) for run in rows]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {_time(rows[0].get((name, 'flower')))} |")
    return "\n".join(lines)


def _time(row: dict | None) -> str:
    return f"{row['ratio']:.1f}x ({row['memory']:.0f})" if row else ""


READINGS = ("code", "equal", "text")
NAMES = {
    "FedAvg": "mean (FedAvg)",
    "Median": "median",
    "TrimAvg": "trimmed mean",
    "GeoMed": "geometric median",
    "Krum": "multi-Krum, told that 8 lie",
}
OURS = {"Ours": "**Bayesian (default)**", "Ours (paper)": "Bayesian as published"}

ATTACKS = {
    "sign_flip": "sign flip",
    "random": "random noise",
    "label_flip": "label flip",
    "backdoor": "backdoor",
}
LIARS = {"1": "4 of 20", "2": "8 of 20", "3": "up to 9 of 20, changing every round"}  # of the paper's configurations


def results() -> str:
    """Rules against attacks: Fashion-MNIST in the paper's second configuration, by the code's reading where it ran."""
    attacks = tuple(ATTACKS)
    code = {(run["rule"], run["attack"]): run for study in ("code-equal", "code-tables") for run in _runs(study)}
    text = {(run["rule"], run["attack"]): run for study in ("tables", "tables-ours") for run in _runs(study)}
    padded = [rule for rule in (*NAMES, "Ours") if any((rule, attack) not in code for attack in attacks)]
    runs = {
        (rule, attack): (text if rule in padded else code)[rule, attack]
        for rule in (*NAMES, "Ours")
        for attack in attacks
    }
    commits = " and ".join(sorted({_code_of(runs["Ours", attack]["commit"]) for attack in attacks}))
    marked = " Rows with ᵗ: images padded, as in the paper's text." if padded else ""
    where = "one NVIDIA H200"
    for attack in attacks:
        on_cpu = [NAMES.get(rule, rule) for rule in (*NAMES, "Ours") if "cuda" not in runs[rule, attack]["device"]]
        where += f" ({' and '.join(on_cpu)} under {ATTACKS[attack]}: two CPU cores)" * bool(on_cpu)
    lines = _by_attack("Test accuracy on Fashion-MNIST when 8 of 20 clients lie, mean of the last 20 of 100 rounds:")
    for rule in (*NAMES, "Ours"):
        lines.append(_accuracies(rule, " ᵗ" * (rule in padded), [runs[rule, attack] for attack in attacks]))
    missed = [f"{float(runs['Ours', attack]['misses_per_round']):.1f}" for attack in attacks]
    lines.append(f"| *attackers that Bayesian did not accuse, per round* | {' | '.join(missed)} | |")
    details = (
        f"*LeNet-5, Dirichlet alpha 0.5, seed 0, {where}. This is the paper's configuration 2 with images resized, as "
        f"in the authors' code, from `make results`.{marked} The default rule is that of commit {commits}.*"
    )
    return "\n".join([*lines, "", details])


def cifar() -> str:
    """The README's rows for CIFAR-10: all rules in the paper's second configuration."""
    runs = _cifar_runs()
    lines = _by_attack("The same on CIFAR-10 ([all rules](results/README.md)):")
    for rule in (*NAMES, "Ours (paper)", "Ours"):
        lines.append(_accuracies(rule, "", [runs.get((rule, "2", attack), {}) for attack in ATTACKS]))
    details = (
        "*ResNet-18 of half width in bfloat16, 100 rounds, which is half of the paper's (`results/cifar.toml`). The "
        "backdoor starts from a model trained for 200 rounds without attack. –: not run.*"
    )
    return "\n".join([*lines, "", details])


def _by_attack(text: str) -> list[str]:
    """The text above a table of rules by attacks, and its head."""
    head = f"| rule | {' | '.join(ATTACKS.values())} | backdoor's success rate |"
    return [text, "", head, "|---|---|---|---|---|---|"]


def _accuracies(rule: str, mark: str, runs: list[dict[str, str]]) -> str:
    """The row of a rule: its runs under each attack, the backdoor last."""
    numbers = [run.get("accuracy_mean_last_20") for run in runs] + [runs[-1].get("asr_mean_last_20")]
    cells = [f"{float(number):.2f}" if number else "–" for number in numbers]
    name = {**NAMES, **OURS}[rule]
    return f"| {name}{mark} | {' | '.join(cells)} |"


def cifar_courses() -> str:
    """The default rule and Krum side by side in every run of CIFAR-10 that both have finished."""
    runs = _cifar_runs()
    lines = [
        "| attack | who lies | accuracy: this rule | multi-Krum | success rate: this rule | multi-Krum "
        "| attackers not accused, per round | kept by multi-Krum | honest accused, per round "
        "| left out by multi-Krum |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for config, liars in LIARS.items():
        for attack, name in ATTACKS.items():
            if not {("Ours", config, attack), ("Krum", config, attack)} <= runs.keys():
                continue
            pair = [runs[rule, config, attack] for rule in ("Ours", "Krum")]
            fields = ("accuracy_mean_last_20", "asr_mean_last_20", "misses_per_round", "false_accusations_per_round")
            cells = [f"{float(run[field]):.3f}" if run[field] else "" for field in fields for run in pair]
            lines.append(f"| {name} | {liars} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cifar_runs() -> dict[tuple[str, str, str], dict[str, str]]:
    cell = {"dataset": "cifar10", "alpha": "0.5", "seed": "0", "status": "done"}
    return {(run["rule"], run["config"], run["attack"]): run for run in _runs("cifar", cell)}


#: Runs on a machine whose copy of the history was older than its code, and the commit of that code.
LATER_CODE = {"39df036+": "d19f9eb", "d3e910e+": "c075c3e", "aa3fb47+": "ce4de07"}


def _code_of(commits: str) -> str:
    """The code of runs by what they recorded, one commit or several with spaces between them."""
    shorts = [commit[:7] + "+" * commit.endswith("+") for commit in commits.split()]
    return " and ".join(LATER_CODE.get(short, short) for short in shorts)


FASHION = {"dataset": "fmnist", "config": "2", "alpha": "0.5", "seed": "0", "status": "done"}


def _runs(study: str, cell: dict[str, str] = FASHION) -> list[dict[str, str]]:
    """Some cells of a study's exported runs, those of the README's first table; none if it was not run yet."""
    path = ROOT / "results" / "stores" / f"{study}.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [run for run in csv.DictReader(file) if cell.items() <= run.items()]


def paper() -> str:
    """How many of the paper's published numbers were run, and how they compare, by the last round."""
    with (ROOT / "results" / "cells.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for cell in csv.DictReader(file) if cell["statistic"] == "last" and cell["counted"] == "yes"]
    cells = [cell for cell in cells if cell["rule"] in (*NAMES, "Ours")]  # others are set beside these, not counted
    verdicts = ("reproduced", "better", "worse", "half", "not run")
    rows = [
        "| rule | within 0.02 | better | worse | half of the rounds | not run | by the code | with equal weights | "
        "by the text |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for rule in (*dict.fromkeys(cell["rule"] for cell in cells), "all"):
        here = [cell for cell in cells if rule in (cell["rule"], "all")]
        counted = Counter(cell["verdict"] for cell in here) | Counter(cell["reading"] for cell in here)
        rows.append(f"| {rule} | " + " | ".join(str(counted[one]) for one in (*verdicts, *READINGS)) + " |")
    commits = Counter(_code_of(cell["commits"]) for cell in cells if cell["rule"] == "Ours" and cell["commits"])
    shares = ", ".join(f"{count} with {commit}" for commit, count in sorted(commits.items()))
    return "\n".join([f"*Ours* is the default rule. Its numbers were run with these commits: {shares}.", "", *rows])


PAGES = {
    "README.md": {"results": results, "cifar": cifar, "speed": short_speed},
    "docs/explanation/bayesian.md": {"cifar": cifar_courses},
    "docs/results/paper.md": {"paper": paper},
    "docs/results/speed.md": {"speed": speed},
    "docs/how-to/own-rule.md": {},
    "docs/how-to/own-attack.md": {},
    "docs/how-to/stress.md": {},
}
EXAMPLE = re.compile(r"(<!-- the same as (examples/\w+\.py) -->\n```python[^\n]*\n).*?(?=^```$)", flags=re.S | re.M)


def main() -> int:
    stale = 0
    for name, tables in PAGES.items():
        path = ROOT / name
        old = new = path.read_text(encoding="utf-8")
        for table, make in tables.items():
            text = make().replace("\\", r"\\")
            place = re.compile(rf"(<!-- {table}:[^\n]*-->\n).*?(<!-- /{table} -->)", flags=re.S)
            new, count = place.subn(rf"\g<1>{text}\n\g<2>", new)
            if count != 1:
                raise SystemExit(f"{name} has {count} places for the table {table!r}, not one")
        new = EXAMPLE.sub(lambda block: block[1] + (ROOT / block[2]).read_text(encoding="utf-8"), new)
        if new != old and "--check" in sys.argv:
            print(f"{name} is out of date: run `python docs/tables.py`")
        elif new != old:
            path.write_text(new, encoding="utf-8")
        stale += new != old
    return int("--check" in sys.argv and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
