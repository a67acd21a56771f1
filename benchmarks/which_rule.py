"""Measure every rule under every attack and write the tables of docs/results/which-rule.md.

    python benchmarks/which_rule.py [--recorded FOLDER] [--out FOLDER] [--jobs N]

Recorded updates come from `honestly simulate --record`; without them, the tables cover only synthetic populations. The
raw cases stay in --out. After a change to one rule, --update RULE measures only that rule and keeps the cases of the
others; --from FOLDER rewrites the page from an earlier run without measuring anything.
"""

import argparse
import os
import platform
import time
from dataclasses import replace
from pathlib import Path

from honestly.rules import RULE_CATALOG
from honestly.show.stress_cases import fixed_attacks, mean, worst
from honestly.show.stress_page import lines, read
from honestly.show.stress_tables import tables
from honestly.show.tables import fill, text
from honestly.studies import stress
from honestly.studies.specs import Contestant

PAGE = Path(__file__).parents[1] / "docs" / "results" / "which-rule.md"
STUDIES = ("rules", "clients", "guesses")
# limit the exact subset searches as a round of training would
LIMITED = {"smea": "smea:work=10000000", "mda": "mda:work=2000000", "minimum_variance": "minimum_variance:work=2000000"}
MIXED = ("nnm+trimmed_mean", "nnm+geometric_median", "nnm+multi_krum", "bucketing+geometric_median")
# for the tables that do not compare attacks
USUAL = ("sign_flip", "alie", "ipm", "min_max", "mimic", "near_duplicates", "gaussian", "adaptive")
SIZED = ("bayesian", "geometric_median", "median", "centered_clipping", "trimmed_mean", "multi_krum")
GUESSED = ("bayesian", "geometric_median", "trimmed_mean", "multi_krum", "nnm+trimmed_mean", "dnc", "caf")


def everybody():
    return ("bayesian", "bayesian:variant=paper", *(LIMITED.get(n, n) for n in RULE_CATALOG if n != "bayesian"), *MIXED)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path, help="folder of recorded updates (.npz)")
    parser.add_argument("--out", type=Path, default=Path("which-rule"), help="folder for the cases")
    parser.add_argument("--from", dest="earlier", type=Path, help="use the cases in this folder")
    parser.add_argument(
        "--update", nargs="+", metavar="RULE", help="measure these rules again, keep the others in --out"
    )
    parser.add_argument("--studies", nargs="+", default=STUDIES, choices=STUDIES, help="measure only some of the three")
    parser.add_argument("--seeds", type=int, default=1, help="synthetic populations of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    if args.earlier is None:
        measure(args)
    folder = args.earlier or args.out
    parts = {}
    for name in STUDIES:
        cases = read(folder / name / "cases.jsonl")
        parts |= {f"{name}-{table.name}": table.markdown() for table in tables(cases)}
        if name == "rules":
            parts["answer"] = answer(cases)
    parts["machine"] = (folder / "machine.md").read_text()
    PAGE.write_text(fill(PAGE.read_text(), parts))
    print(f"wrote {PAGE.name}")


def measure(args):
    recorded = (str(args.recorded),) if args.recorded else ()
    seeds = tuple(range(100, 100 + args.seeds))  # not the seeds that anything was tuned on
    studies = {
        "rules": stress.StressStudy(rules=everybody(), populations=(*stress.KINDS, *recorded), seeds=seeds),
        "clients": stress.StressStudy(
            rules=SIZED, populations=("isotropic", "unequal_norms"), clients=(5, 10, 50, 200), malicious=(0.4,),
            attacks=(*USUAL[:-1], "adaptive:columns=500"), seeds=seeds,
        ),
        "guesses": stress.StressStudy(
            rules=GUESSED, populations=("isotropic", "unequal_norms"), malicious=(4, 8), attacks=USUAL,
            believed=(None, 0, 4, 8, 9), seeds=seeds,
        ),
    }  # fmt: skip
    total = 0.0
    for name, study in studies.items():
        rules = tuple(r for r in study.rules if not args.update or r in args.update)
        if not rules or name not in args.studies:
            continue
        file = args.out / name / "cases.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        others = [case for case in read(file) if case.rule not in args.update] if args.update else []
        start = time.perf_counter()
        cases = []
        for population in study.populations:  # saved one by one, so an interrupted run keeps its results
            one = replace(study, rules=rules, populations=(population,))
            show = lambda done, of, what=(name, population): print(*what, done, "of", of, flush=True)  # noqa: E731
            cases += stress.run(one, jobs=args.jobs, progress=show)
            file.write_text(lines(sorted([*cases, *others], key=lambda case: study.rules.index(case.rule))))
        total += time.perf_counter() - start
    missing = [name for name in studies if not (args.out / name / "cases.jsonl").is_file()]
    if missing:
        raise SystemExit(f"{args.out} has no cases of {', '.join(missing)} yet: run --studies {' '.join(missing)}")
    count = sum(1 for name in studies for _ in (args.out / name / "cases.jsonl").open())
    recorded_names = sorted({c.population for c in read(args.out / "rules" / "cases.jsonl") if c.recorded})
    took = "" if args.update or len(args.studies) < len(STUDIES) else f", in {total:.0f} s"
    (args.out / "machine.md").write_text(
        f"{count:,} cases, measured on {platform.machine()} with {os.cpu_count()} cores, Python "
        f"{platform.python_version()}{took}. Recorded rounds: "
        f"{', '.join(f'`{n}`' for n in recorded_names) or 'none'}.\n"
    )


def answer(cases):
    """The short answers: sentences with the measured numbers."""
    informed = [case for case in cases if not case.guessed]
    need_nothing = sorted({c.rule for c in informed if Contestant(c.rule).knows == "nothing"})
    need_f = sorted({c.rule for c in informed if Contestant(c.rule).knows == "f"})

    def at(rule, M):
        return [c for c in informed if c.rule == rule and c.malicious == M]

    def ranking(rules, value):
        ranked = sorted((v, r) for r in rules if (v := value(r)) is not None)
        return ", ".join(f"`{r}` {text(v)}" for v, r in ranked[:4])

    results = []
    for M in sorted({c.malicious for c in informed if c.malicious}):
        results += [
            f"- **{M} of 20 malicious.** Lowest mean kappa over the fixed attacks, of the rules that are told nothing: "
            f"{ranking(need_nothing, lambda r, M=M: mean(c.kappa for c in fixed_attacks(at(r, M))))}. "
            f"Lowest worst case, adaptive attacker included: {ranking(need_nothing, lambda r, M=M: worst(at(r, M)))}. "
            f"Told the true f: mean {ranking(need_f, lambda r, M=M: mean(c.kappa for c in fixed_attacks(at(r, M))))}; "
            f"worst case {ranking(need_f, lambda r, M=M: worst(at(r, M)))}."
        ]
    return "\n".join(results)


if __name__ == "__main__":
    main()
