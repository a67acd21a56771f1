"""The page of docs/results that `simulation.py --table` writes."""

from __future__ import annotations

import json
from pathlib import Path


def table(paths: list[Path]) -> None:
    """The results of several runs as a page for docs."""
    print("# Speed of the simulator\n")
    print(
        "Images per second of local training: 20 clients, batch 128, SGD with Nesterov momentum, random pixels. "
        "Measured by\n`benchmarks/simulation.py`, which writes one JSON file per run; `--table` makes this page from "
        "these files.\n"
    )
    for path in paths:
        r = json.loads(path.read_text())
        where = f"{r['machine']}, {r['threads']} threads" if "plain" in r else r["machine"]
        print(f"## {where} (PyTorch {r['torch']})\n\n| work | images/s |\n|---|---|")
        for part, title in (
            ("plain", "LeNet-5, plain loop with a DataLoader, {}"),
            ("lenet", "LeNet-5, all clients at once, {}"),
            ("many", "LeNet-5, {}"),
            ("together", "LeNet-5, {}"),
            ("endtoend", "LeNet-5, whole rounds with attack, aggregation and evaluation, rule {}"),
            ("residual", "{}"),
            ("resnet", "{}"),
        ):
            for name, value in (r[part] if isinstance(r.get(part), dict) else {}).items():
                if part != "endtoend" or name.endswith("images/s"):
                    print(f"| {title.format(name.removesuffix(': images/s'))} | {value:,.0f} |")
        for name, ratio in (r.get("ratio") or {}).items():
            print(f"\nAll clients at once, {name} / plain loop: **{ratio:.1f}**.")
        rounds = {k: v for k, v in (r.get("endtoend") or {}).items() if k.startswith("bayesian") and "ms" in k}
        if rounds:
            parts = ", ".join(f"{k.split(': ')[1].split(' ms')[0]} {v:.0f} ms" for k, v in rounds.items())
            print(f"\nA round of the Bayesian rule ({10 * r['images']:,} images): {parts}.")
        if "parts of other runs" in r:
            print(f"\nNot all of these were measured in one run: {r['parts of other runs']}.")
        if isinstance(r.get("check"), dict):
            worst = max(v for k, v in r["check"].items() if "resnet" not in k)
            print(
                f"\nLargest difference of a parameter from the plain path on a CPU after training: {worst:.1g}", end=""
            )
            print(f" (ResNet-18, half width: {r['check']['resnet18_half, graphs']:.1g}).")
        print()
