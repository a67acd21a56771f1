"""Rewrites the tables of README.md from the code and from measurements: python docs/tables.py [--check].

Each table stands between `<!-- name: ... -->` and `<!-- /name -->`. Measurements are the JSON files that
`benchmarks/aggregation.py --json benchmarks/results/NAME.json` writes.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path

import honestly as hn

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def rules() -> str:
    """One row per rule and mixer."""
    rows = ["| name | what it does | must be told | honesty | streams | reference |", "|---|---|---|---|---|---|"]
    for info in hn.list_rules():
        told = ", ".join(need for need in info.needs if need != "signs") or "nothing"
        honesty = "yes" if info.infers_honesty else ""
        name = f"`{info.name}`" + ("" if info.kind == "rule" else " (mixer)")
        streams = "yes" if info.streams else ""
        source = re.sub(r" \(docs/.*?\)", "", info.reference)
        rows.append(f"| {name} | {info.summary} | {told} | {honesty} | {streams} | {source} |")
    return "\n".join(rows)


def speed() -> str:
    """One table per measurement: every rule and peer as a multiple of the plain mean of the same run."""
    return "\n\n".join(_speed(json.loads(path.read_text())) for path in sorted(RESULTS.glob("aggregation-*.json")))


def _speed(found: dict) -> str:
    """The kinds of kernels side by side; memory and peers are those of the first."""
    runs = found.get("runs", [found])
    first = runs[0]
    absolute = f" ({first['mean_ms']:.2f} ms)" if "NVIDIA" in first["machine"] else ""
    load = first.get("load")
    loaded = f"; loaded: with {load} busy processes beside, of a mean under the same load" if load else ""
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


def training() -> str:
    """The first paragraph and table of the results in training, which `benchmarks/proof.py` wrote."""
    page = (ROOT / "docs" / "results" / "simulation-results.md").read_text(encoding="utf-8")
    _, about, table, *_ = page.split("\n\n")
    return f"{about}\n\n{table}"


def paper() -> str:
    """How many of the paper's published numbers were run, and how they compare, by the last round."""
    with (ROOT / "results" / "cells.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for cell in csv.DictReader(file) if cell["statistic"] == "last"]
    cells = [cell for cell in cells if cell["rule"] != "Ours (paper)"]  # set beside the paper's, not counted
    verdicts = ("reproduced", "better", "worse", "not run")
    rows = ["| rule | within 0.02 | better | worse | not run |", "|---|---:|---:|---:|---:|"]
    for rule in (*dict.fromkeys(cell["rule"] for cell in cells), "all"):
        counted = Counter(cell["verdict"] for cell in cells if rule in (cell["rule"], "all"))
        rows.append(f"| {rule} | " + " | ".join(str(counted[verdict]) for verdict in verdicts) + " |")
    return "\n".join(rows)


def main() -> int:
    path = ROOT / "README.md"
    old = path.read_text()
    new = old
    for name, table in (("rules", rules()), ("training", training()), ("paper", paper()), ("speed", speed())):
        new = re.sub(rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- /{name} -->)", rf"\g<1>{table}\n\g<2>", new, flags=re.S)
    if "--check" in sys.argv:
        return int(new != old)
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
