"""One session on a machine with a time limit: continue the studies in results/stores, and pack the results.

    python results/session.py cifar --stop-after 560 --out OUT     # CIFAR-10, in the order of its importance
    python results/session.py tables --stop-after 560 --out OUT    # MNIST and Fashion-MNIST by the authors' code
    python results/session.py ablation figure1 --stop-after 9m --out OUT

The next session continues from the OUT of the one before. Exit status: 75 if there is more to do, 0 if all is done.
The results are also packed every two minutes: a session that is killed loses no more than that. Afterwards, at
home, `python results/make.py --pack OUT` imports the results, packs them into results/stores and writes the pages
again. OUT has one archive for each study, cut into files of at most 16 MiB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from honestly.runs.export import archive
from honestly.runs.store import Store
from honestly.runs.transfer import ImportResult, take_in
from honestly.studies.limit import seconds_of

RESULTS = Path(__file__).parent
PART, PARTS = 16 << 20, 8  # limits on what can be downloaded: the number of files, and bytes per file
PACKING = 20.0  # seconds reserved for packing


@dataclass(frozen=True)
class Part:
    """Runs of a study.

    Attributes:
        store: the name of its store.
        study: its name or file.
        only: which of its cells, in words of `--only`.
        together: how many runs are trained side by side on a GPU.
        reuse: the store whose runs and starting models it shares.
    """

    store: str
    study: str
    only: tuple[str, ...] = ()
    together: int = 1
    reuse: str = ""


CIFAR = str(RESULTS / "cifar.toml")
#: What a session does, the most important part first.
PLANS = {
    "cifar": (
        Part("cifar", CIFAR, ("rule=Ours", "alpha=0.5", "config=2,1", "attack=label_flip,backdoor")),
        Part("cifar", CIFAR, ("rule=Ours", "alpha=0.5")),
        Part("cifar", CIFAR, ("rule=Krum", "alpha=0.5")),
        Part("cifar", CIFAR, ("rule=Ours", "alpha=1")),
        Part("cifar", CIFAR, ("rule=Ours (paper)", "alpha=0.5", "config=2")),
        Part("cifar", CIFAR, ("rule=FedAvg,Median,TrimAvg,GeoMed", "alpha=0.5", "config=2")),
        Part("cifar-200", str(RESULTS / "cifar-200.toml"), reuse="cifar"),
    ),
    "tables": (
        Part("code-tables", "paper-tables", ("dataset=fmnist,mnist", "rule=Ours", "seed=0"), 8),
        Part("code-tables", "paper-tables", ("dataset=fmnist,mnist", "rule=Krum", "seed=0"), 8),
        Part("code-tables", "paper-tables", ("dataset=fmnist", "config=2", "alpha=0.5", "seed=0"), 8),  # README's table
        Part("code-tables", "paper-tables", ("dataset=fmnist,mnist", "attack=backdoor", "seed=0"), 8),
        Part("code-tables", "paper-tables", ("dataset=fmnist,mnist", "seed=0"), 8),
        Part("code-tables", "paper-tables", ("dataset=fmnist,mnist", "seed=1,2"), 8),
    ),
    "ablation": (Part("code-ablation", "paper-ablation", ("dataset=fmnist",), 8, reuse="code-tables"),),
    "figure1": (Part("code-figure1", "paper-figure1"),),
    "seeds": (Part("code-seeds", str(RESULTS / "seeds.toml"), (), 8),),
    "quiet": (Part("quiet", str(RESULTS / "quiet.toml"), (), 8),),
}


def main(words: list[str] | None = None) -> int:
    """Unpack, run until the time is up, pack; the exit status of the last study (75 if there is more to do)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plans", nargs="+", choices=PLANS, help="what to run, in this order")
    parser.add_argument("--stop-after", default="560", metavar="TIME", help="end within this time (default: 560 s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to put the archives")
    parser.add_argument("--work", type=Path, default=Path("build/results"), metavar="DIR", help="the studies' folders")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--again", action="append", default=[], metavar="RULE",
        help="do the runs of this rule in results/stores again (such as Ours, which has changed since)",
    )  # fmt: skip
    parser.add_argument(
        "--pack-every", default="2m", metavar="TIME", help="also pack while the runs train (default: 2m)"
    )
    parser.add_argument("--from", type=Path, metavar="DIR", dest="source", help="the session before, if not in --out")
    args = parser.parse_args(words)
    ends = time.time() + seconds_of(args.stop_after) - PACKING
    status, stores = 0, dict.fromkeys(part.store for plan in args.plans for part in PLANS[plan])
    for name in stores:
        unpack(name, args)
    for part in (part for plan in args.plans for part in PLANS[plan]):
        with packed_every(seconds_of(args.pack_every), part.store, args):
            status = run(part, args, ends)
        if status not in (0, 1):  # 1: some runs failed, as recorded in the store
            break
    for name in stores:
        pack(name, args.work, args.out)
    files = sorted(args.out.glob("*.tar.gz*"))
    if len(files) > PARTS:
        print(f"{len(files)} files in {args.out}: only {PARTS} can be downloaded", file=sys.stderr)
    return status


def unpack(name: str, args: argparse.Namespace) -> None:
    """Continue from the archive of the session before if there is one, else from results/stores."""
    before, first = join((args.source or args.out) / f"{name}.tar.gz"), RESULTS / "stores" / f"{name}.tar.gz"
    with Store.open(args.work / name) as store:
        if before is not None:
            print(f"{before}: {take_in(store, before)}", flush=True)
        elif first.is_file():
            print(f"{first}: {take_over(store, first, args.again)}", flush=True)


def take_over(store: Store, path: Path, again: list[str]) -> ImportResult:
    """Import a study without the runs of some rules, which are to be done again."""
    with TemporaryDirectory() as temporary, Store.open(temporary) as there:
        take_in(there, path)
        return take_in(
            store, Path(temporary), only={run.id for run in there.runs() if run.cell.get("rule") not in again}
        )


def run(part: Part, args: argparse.Namespace, ends: float) -> int:
    """Run a part of a plan in the time that is left."""
    left = ends - time.time()
    if left <= 0:
        return 75
    words = [sys.executable, "-m", "honestly", "bench", part.study, "--out", str(args.work / part.store)]
    for only in part.only:
        words += ["--only", only]
    together = ["--together", str(part.together)] if part.together > 1 and args.device.startswith("cuda") else []
    if (shared := args.work / part.reuse) != args.work and shared.is_dir():
        words += ["--reuse", str(shared)]
    words += ["--device", args.device, *together, "--stop-after", f"{max(left, 1.0):.0f}", "--quiet"]
    print(" ".join(words[1:]), flush=True)
    return subprocess.run(words, check=False).returncode


@contextmanager
def packed_every(seconds: float, name: str, args: argparse.Namespace) -> Iterator[None]:
    """Pack a study again and again while it is run: a machine that stops at its limit kills what is on it."""
    ended = threading.Event()

    def keep_packing() -> None:
        while not ended.wait(seconds):
            pack(name, args.work, args.out)

    thread = threading.Thread(target=keep_packing)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pack(name: str, work: Path, out: Path) -> None:
    """Pack a study into files small enough to download: `cat NAME.tar.gz.*` joins them again."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=work) as temporary, Store.open(work / name) as store:
        archive(store, packed := Path(temporary) / f"{name}.tar.gz")
        content = packed.read_bytes()
    pieces = {f"{name}.tar.gz": content}
    if len(content) > PART:
        starts = range(0, len(content), PART)
        pieces = {f"{name}.tar.gz.{i:02}": content[start : start + PART] for i, start in enumerate(starts)}
    for piece, part in pieces.items():
        (out / f"{piece}.new").write_bytes(part)
    for piece in pieces:  # all at once: pieces of two archives cannot be joined
        (out / f"{piece}.new").replace(out / piece)
    for old in out.glob(f"{name}.tar.gz*"):
        if old.name not in pieces:
            old.unlink()


def join(path: Path) -> Path | None:
    """The archive at a path, joined from its parts if it was cut; None if there is neither."""
    parts = sorted(path.parent.glob(f"{path.name}.[0-9][0-9]"))
    if parts and not path.exists():
        path.write_bytes(b"".join(part.read_bytes() for part in parts))
        for part in parts:
            part.unlink()
    return path if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
