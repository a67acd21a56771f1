"""Measure the Bayesian rule on updates and write the tables and the reliability curve of docs/explanation/bayesian.md.

    python benchmarks/bayesian_study.py --recorded FOLDER [--out FOLDER] [--jobs N]     measure, then write the page
    python benchmarks/bayesian_study.py --from FOLDER                                   write the page again
    python benchmarks/bayesian_study.py --time                                          the rule's own time

FOLDER holds recorded updates of real training (.npz): benchmarks/record_updates.py or `honestly simulate --record`.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
from bayesian_variants import CHANGES, Variant

from honestly.bench import specs, stress

ROOT = Path(__file__).parents[1]
PAGE, FIGURE = ROOT / "docs" / "explanation" / "bayesian.md", ROOT / "docs" / "figures" / "reliability.png"
specs.RULES[Variant.name] = Variant
SHIPPED, PAPER = "bayesian", "bayesian:variant=paper"
RULES = (SHIPPED, PAPER, *(f"variant:change={change}" for change in CHANGES if change != "none"))
ATTACKED = (SHIPPED, PAPER, RULES[2], "variant:change=votes_recounted", "geometric_median", "median", "multi_krum")
SYNTHETIC = ("isotropic", "low_rank", "heavy_tailed", "unequal_norms", "clustered")


def measure(recorded, out, jobs):
    out.mkdir(parents=True, exist_ok=True)
    studies = {
        "fixed": stress.Study(
            rules=RULES, attacks=stress.SUITE, populations=(*recorded, *SYNTHETIC), malicious=(0, 4, 8, 9)
        ),
        "adaptive": stress.Study(
            rules=ATTACKED, attacks=("adaptive",), populations=(*recorded[:1], *SYNTHETIC[:2]), malicious=(4, 8, 9)
        ),
    }
    for name, study in studies.items():
        cases = [case.asdict() for case in stress.run(study, jobs=jobs)]
        (out / f"{name}.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"
    )
    (out / "machine.txt").write_text(machine)


def read(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def mean(values):
    values = list(values)
    return f"{np.mean(values):.3f}" if values else "-"


def rule_name(rule):
    names = {SHIPPED: "**shipped**", PAPER: "published, scale-free"}
    return names.get(rule, rule.removeprefix("variant:change=").replace("_", " "))


def targets(cases):
    """The figures that the rule had to reach, on recorded updates."""
    rows = ["| on recorded updates | " + " | ".join(rule_name(rule) for rule in (PAPER, RULES[2], SHIPPED)) + " |"]
    rows.append("|---|---|---|---|")
    real = [case for case in cases if case["recorded"]]
    wide = ("random", "gaussian", "gaussian:scale=1", "gaussian:scale=10")
    questions = {
        "mean over all fixed attacks, M = 4, 8, 9": lambda c: c["malicious"] > 0,
        "random and gaussian noise, M = 8": lambda c: c["malicious"] == 8 and c["attack"] in wide,
        "sign flip x2, M = 8": lambda c: c["malicious"] == 8 and c["attack"] == "sign_flip:gamma=2",
        "label flip, M = 8": lambda c: c["malicious"] == 8 and c["attack"] == "label_flip",
        "no attacker": lambda c: c["malicious"] == 0,
    }
    for question, chosen in questions.items():
        cells = [
            mean(c["kappa"] for c in real if c["rule"] == rule and chosen(c)) for rule in (PAPER, RULES[2], SHIPPED)
        ]
        rows.append(f"| {question} | {' | '.join(cells)} |")
    for label, key in (("worst case over all fixed attacks", None), ("honest clients accused, no attacker", "accused")):
        cells = []
        for rule in (PAPER, RULES[2], SHIPPED):
            found = [c for c in real if c["rule"] == rule]
            if key is None:
                cells.append(f"{max(c['kappa'] for c in found if c['malicious']):.2f}")
            else:
                cells.append(f"{100 * np.mean([c[key] for c in found if not c['malicious']]):.1f} %")
        rows.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(rows)


def variants(cases):
    """Every form on recorded and on synthetic updates."""
    rows = ["| form | recorded: mean / worst | synthetic: mean / worst | accused, no attacker (recorded, synthetic) |"]
    rows.append("|---|---|---|---|")
    for rule in RULES:
        cells = []
        for recorded in (True, False):
            found = [c["kappa"] for c in cases if c["rule"] == rule and c["recorded"] is recorded and c["malicious"]]
            cells.append(f"{np.mean(found):.3f} / {np.max(found):.2f}" if found else "-")
        idle = []
        for recorded in (True, False):
            found = [c for c in cases if c["rule"] == rule and c["recorded"] is recorded and not c["malicious"]]
            idle.append(f"{100 * np.mean([c['accused'] for c in found]):.1f} %" if found else "-")
        rows.append(f"| {rule_name(rule)} | {' | '.join(cells)} | {', '.join(idle)} |")
    return "\n".join(rows)


def adaptive(cases):
    """The attacker that knows the rule."""
    kinds = list(dict.fromkeys("recorded" if c["recorded"] else c["population"] for c in cases))
    rows = ["| rule | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    for rule in dict.fromkeys(c["rule"] for c in cases):
        cells = []
        for kind in kinds:
            of_rule = [c for c in cases if c["rule"] == rule]
            of_kind = [c for c in of_rule if (c["recorded"] if kind == "recorded" else c["population"] == kind)]
            worst = [max(c["kappa"] for c in of_kind if c["malicious"] == M) for M in (4, 8, 9)]
            cells.append(" / ".join(f"{k:.2f}" if k < 1000 else "broken" for k in worst))
        rows.append(f"| {rule_name(rule)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def reliability(cases):
    """Of the clients given a probability, what share was honest? Over all populations and attacks together."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    for axis, recorded in zip(axes, (True, False), strict=True):
        for rule, label, colour in ((PAPER, "published, scale-free", "#d95f02"), (SHIPPED, "shipped", "#1b6ca8")):
            found = [c for c in cases if c["rule"] == rule and c["recorded"] is recorded]
            if not found:
                continue
            told = np.concatenate([c["honesty"] for c in found])
            truth = np.concatenate([np.arange(c["clients"]) < c["clients"] - c["malicious"] for c in found])
            edges = np.linspace(0, 1, 11)
            which = np.clip(np.digitize(told, edges) - 1, 0, 9)
            filled = [b for b in range(10) if (which == b).any()]
            bins = [(told[which == b].mean(), truth[which == b].mean(), (which == b).sum()) for b in filled]
            x, y, n = map(np.array, zip(*bins, strict=True))
            axis.plot(x, y, color=colour, lw=1)
            axis.scatter(x, y, s=8 + 120 * n / n.sum(), color=colour, label=label, zorder=3)
        axis.plot([0, 1], [0, 1], color="0.6", lw=0.8, ls="--")
        axis.set(
            title="recorded updates" if recorded else "synthetic",
            xlabel="honesty that was reported",
            xlim=(-0.03, 1.03),
        )
    axes[0].set_ylabel("share that was honest")
    axes[1].legend(loc="lower right", frameon=False)
    figure.savefig(FIGURE, dpi=110)


def clock():
    """Milliseconds of the rule on a Gram matrix, with 40 % attackers, best of several."""
    from honestly.rules.base import GramGeometry
    from honestly.rules.bayesian import Bayesian

    rng = np.random.default_rng(0)
    for K, times in ((20, 200), (200, 10), (1000, 3)):
        X = rng.normal(size=(K, 2000))
        X[: 2 * K // 5] *= 2
        geometry = GramGeometry(X @ X.T)
        found = []
        for _ in range(times):
            start = time.perf_counter()
            Bayesian().mix(geometry)
            found.append(time.perf_counter() - start)
        print(f"K = {K}: {1000 * min(found):.2f} ms")


def fill(text, parts):
    for name, part in parts.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = text.split(start)
        text = f"{before}{start}\n{part}\n{end}{rest.split(end)[1]}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path, help="folder of recorded updates (.npz)")
    parser.add_argument("--out", type=Path, default=Path("bayesian-study"), help="where the cases go")
    parser.add_argument("--from", dest="earlier", type=Path, help="use the cases of this folder")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="only measure the rule's own time")
    args = parser.parse_args()
    if args.time:
        clock()
        return
    folder = args.earlier or args.out
    if args.earlier is None:
        measure(sorted(str(path) for path in args.recorded.glob("*.npz")) if args.recorded else [], args.out, args.jobs)
    fixed = read(folder, "fixed")
    reliability(fixed)
    parts = {"targets": targets(fixed), "variants": variants(fixed), "adaptive": adaptive(read(folder, "adaptive"))}
    parts["machine"] = (folder / "machine.txt").read_text()
    PAGE.write_text(fill(PAGE.read_text(), parts))


if __name__ == "__main__":
    main()
