"""Check that two source trees write the same bytes: small runs, a small study, and the reports of stored studies.

    git archive OLD src | tar -x -C /tmp/before
    python benchmarks/same_bytes.py /tmp/before/src src --stores results/stores

Files with times, databases and archives are not compared directly; their contents are compared through `honestly
export`. The folders of a study's runs, which have the states to resume from, are not compared either.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

RUNS = {
    "bayesian": "rule=bayesian attack=backdoor malicious=0.3 rounds=3 clients=10 model=mlp epochs=1 seed=3",
    "sampled": (
        "rule=geometric_median attack=random malicious=4 dynamic=true participation=0.9 dropout=0.1 rounds=3 "
        "clients=10 model=mlp epochs=1 seed=7"
    ),
    "median": "rule=median attack=sign_flip malicious=2 rounds=2 clients=6 model=mlp epochs=1 evaluate_every=2",
    "refused": "rule=krum rule.f=1 attack=nan malicious=0.4 rounds=2 clients=5 model=mlp epochs=1",
}
STUDY = """
name = "small"
[base]
clients = 5
rounds = 3
epochs = 1
model = "mlp"
malicious = 1
attack = "sign_flip"
[axes]
rule = ["mean", "bayesian"]
seed = [0, 1]
"""
LEFT_OUT = ("seconds.jsonl", "study.sqlite", "study.sqlite-wal", "study.sqlite-shm", "runs.csv", "rounds.csv")


def honestly(src: Path, *words: str | Path, where: Path) -> None:
    """Run a command of the package in that source tree."""
    environment = {**os.environ, "PYTHONPATH": str(src.resolve()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "honestly", *map(str, words)]
    subprocess.run(command, cwd=where, env=environment, check=True, stdout=subprocess.DEVNULL)


def write_all(src: Path, out: Path, stores: Path | None) -> None:
    """Write everything that is compared."""
    for name, words in RUNS.items():
        honestly(src, "simulate", "dataset=digits", *words.split(), "--out", name, "--quiet", where=out)
        honestly(src, "report", name, "--quiet", where=out)
    (out / "small.toml").write_text(STUDY)
    honestly(src, "bench", "small.toml", "--out", "small", "--quiet", where=out)
    studies = ["small"]
    for archive in sorted(stores.resolve().glob("*.tar.gz")) if stores else []:
        name = archive.name.removesuffix(".tar.gz")
        honestly(src, "bench", "--out", name, "--import", archive, "--quiet", where=out)
        studies.append(name)
    for name in studies:
        for what in ("runs", "rounds"):
            honestly(src, "export", what, name, "-o", f"{name}/{what}.csv", where=out)
            _without_times(out / name / f"{what}.csv")
    pages = [name for name in ("small", "figure1") if name in studies]
    honestly(src, "report", *pages, "--out", "pages", "--quiet", where=out)
    honestly(src, "report", *studies, "--out", "reports", "--no-pages", "--no-figures", "--quiet", where=out)


def _without_times(path: Path) -> None:
    """A CSV file without what differs from run to run: its duration and the commit of the tree."""
    with path.open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k not in ("seconds", "commit")} for row in csv.DictReader(file)]
    path.with_suffix(".txt").write_text("".join(f"{row}\n" for row in rows))


def files(folder: Path) -> dict[str, bytes]:
    """Map the paths that must be the same to their contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in LEFT_OUT and path.parent.parent.name != "runs"
    }


def main() -> int:
    """Print the names of files that differ, and return exit status 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--stores", type=Path)
    parser.add_argument("--keep", type=Path, help="folder to keep what BEFORE wrote, for later comparisons")
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        before, after = args.keep or Path(temporary) / "before", Path(temporary) / "after"
        after.mkdir()
        if not before.exists():
            before.mkdir(parents=True)
            write_all(args.before, before, args.stores)
        write_all(args.after, after, args.stores)
        old, new = files(before), files(after)
    differ = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    print("\n".join(differ) or f"{len(old)} files are the same, {sum(map(len, old.values())):,} bytes")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
