"""Write everything in results/ except studies and stores again, and the tables of README.md and the docs.

    python results/make.py              # `make results`
    python results/make.py --pack DIR   # first import the studies in DIR and pack them into results/stores

Stores are kept as results/stores/NAME.tar.gz. Each is unpacked into build/results/NAME unless that exists: a study
that has been continued there is reported from there. The same stores give the same bytes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from courses import tables  # pyright: ignore[reportMissingImports]: beside this file
from session import join, take_over  # pyright: ignore[reportMissingImports]: beside this file

from honestly.runs.export import archive, export
from honestly.runs.store import Store
from honestly.runs.transfer import take_in
from honestly.show.report.sources import ReportedStudy, load, merge
from honestly.show.report.write import ReportOptions, write

ROOT = Path(__file__).parent.parent
RESULTS, STORES, BUILD = ROOT / "results", ROOT / "results" / "stores", ROOT / "build" / "results"
#: The stores in the report's order, and the study that each belongs to. The first four were made when the studies of
#: the paper's text were called paper-tables, paper-ablation and paper-figure1; their runs are those of the text.
STUDIES = {
    "tables": "paper-text-tables",
    "tables-ours": "paper-text-tables",
    "ablation": "paper-text-ablation",
    "figure1": "paper-text-figure1",
    "code-tables": "paper-tables",
    "code-equal": "equal-weights",
    "code-ablation": "paper-ablation",
    "code-figure1": "paper-figure1",
    "code-seeds": "seeds",
    "label-flip": "label-flip",
    "random": "random-or-colluding",
    "cifar": "cifar",
    "cifar-200": "cifar-200",
    "cifar-short": "cifar-short",
    "quiet": "quiet",
}


def main() -> int:
    """Unpack, import and report; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pack", type=Path, metavar="DIR", help="take in the studies in DIR (archives or folders)")
    parser.add_argument(
        "--again", action="append", default=[], metavar="RULE", help="with --pack: the same as in results/session.py"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where to (default: results)")
    args = parser.parse_args()
    for name in STUDIES:
        unpack(name)
    if args.pack is not None:
        for name in STUDIES:
            pack(name, args.pack, args.again)
    report(args.out)
    if args.out == RESULTS:
        return subprocess.run([sys.executable, ROOT / "docs" / "tables.py"], check=False).returncode
    return 0


def unpack(name: str) -> None:
    """Unpack a store, unless that has been done or it has no runs yet."""
    packed, folder = STORES / f"{name}.tar.gz", BUILD / name
    if packed.is_file() and not folder.is_dir():
        print(f"unpack {packed}")
        with Store.open(folder) as store:
            take_in(store, packed)


def pack(name: str, source: Path, again: list[str]) -> None:
    """Import the runs of a study from elsewhere and pack them with ours, except ours that were done again there."""
    paths = [path for path in (source / name, join(source / f"{name}.tar.gz")) if path is not None and path.exists()]
    for path in paths:
        with TemporaryDirectory() as temporary, Store.open(temporary) as store:
            print(f"{path}: {take_in(store, path)}")
            if (BUILD / name).is_dir():  # of two records of a run, the one of the latest session counts
                print(f"{BUILD / name}: {take_over(store, BUILD / name, again)}")
            if not store.runs():
                continue  # a session had no time for this study
            archive(store, STORES / f"{name}.tar.gz")
        shutil.rmtree(BUILD / name, ignore_errors=True)
        unpack(name)


def report(out: Path) -> None:
    """Write the pages, tables and figures, and the runs of each store as CSV."""
    studies: list[ReportedStudy] = []
    for name, study in STUDIES.items():
        if (folder := BUILD / name).is_dir():
            with Store.read(folder) as store:
                (out / "stores").mkdir(parents=True, exist_ok=True)
                export(store, "runs", out / "stores" / f"{name}.csv")
            studies.append(replace(load(folder), name=study))
    shutil.rmtree(out / "figures", ignore_errors=True)
    preface = (RESULTS / "preface.md").read_text(encoding="utf-8").replace("<!-- courses -->", tables(BUILD))
    files = write(merge(studies), out, ReportOptions(pages=False, preface=preface))
    print(f"{len(files)} files in {out}")


if __name__ == "__main__":
    sys.exit(main())
