"""`honestly bench`: many experiments at once, from a study's file."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from honestly.runs.store import PlannedRun, Store
    from honestly.studies.study import Study
    from honestly.studies.work import WorkOptions

EPILOG = """\
examples:
  honestly bench quick --out results/quick --workers 2
  honestly bench paper-tables --out results/tables --dry-run
  honestly bench paper-tables --out results/tables --only dataset=fmnist --only rule=Ours,Krum --device cuda
  honestly bench paper-tables --out results/tables --shard 1/4          (the first of four machines)
  honestly bench paper-tables --out results/tables --ray auto --gpus-per-run 0.25
  honestly bench --out results/tables --import other/tables             (merge the results of several machines)
  honestly bench paper-ablation --out results/ablation --reuse results/tables   (reuse the runs that both have)
  honestly bench --out results/tables                                   (resume the study in that folder)
  honestly bench --out results/tables --stop-after 55m                  (in a queue that allows an hour)

Finished runs are skipped, interrupted runs resume, failed runs are tried again. Exit status: 0 if every run is done,
1 if some failed or the store cannot be used, 2 if the study or an option is wrong, 75 if --stop-after ended it with
runs left, 130 if stopped.
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="run a study: a grid of experiments, resumable",
        description="Run a study, a grid of experiments defined in a file. Finished runs are not run again.",
        epilog=EPILOG,
    )
    parser.add_argument("study", nargs="?", metavar="STUDY", help="a TOML file, or a study that comes with honestly")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the study's folder (default: results/NAME)")
    parser.add_argument("--list", action="store_true", help="list the studies that come with honestly, and stop")
    parser.add_argument("--dry-run", action="store_true", help="print the number of runs and how long they would take")
    choice = parser.add_argument_group("which runs")
    choice.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=VALUE[,VALUE]",
        help="select runs by their value on an axis; may be repeated",
    )
    choice.add_argument("--shard", metavar="I/N", help="run only part I of N, for N machines")
    choice.add_argument("--skip-failed", action="store_true", help="do not retry runs that failed before")
    choice.add_argument("--replace", action="store_true", help="drop runs of an earlier version of the study")
    choice.add_argument(
        "--import", action="append", default=[], type=Path, metavar="FILE", dest="imports",
        help="first import results from the folder of another study or an export of it",
    )  # fmt: skip
    choice.add_argument(
        "--reuse", action="append", default=[], type=Path, metavar="FILE",
        help="copy runs that another study has already finished (its folder or an export)",
    )  # fmt: skip
    how = parser.add_argument_group("how to run them")
    how.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 or auto (default: cpu)")
    how.add_argument("--data", type=Path, metavar="DIR", help="where the data sets are (default: $HONESTLY_DATA)")
    how.add_argument("--workers", type=int, default=0, metavar="N", help="use N local processes (default: this one)")
    how.add_argument("--together", type=int, default=1, metavar="N", help="train N runs side by side on one GPU")
    how.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help="use a Ray cluster (default: a local one)")
    how.add_argument(
        "--gpus-per-run", type=float, default=0.0, metavar="X", help="with --ray: GPUs per run, e.g. 0.25 (0: CPU)"
    )
    how.add_argument("--cpus-per-run", type=float, default=1.0, metavar="X", help="with --ray: CPU cores per run")
    how.add_argument(
        "--stop-after", metavar="TIME",
        help="end before this time has passed (560, 9m, 1.5h): a round that would take longer is not started",
    )  # fmt: skip
    how.add_argument("--keep-models", action="store_true", help="keep the final model of every run in DIR/runs")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--quiet", action="store_true", help="print nothing but errors")
    output.add_argument("--json", action="store_true", help="print one JSON object for every finished run")
    parser.set_defaults(run=run, extra="sim")


def run(args: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    from honestly.studies import study as studies

    if args.list:
        for name in studies.shipped_studies():
            print(f"{name:20} {studies.Study.parse(studies.text_of(name)).about}")
        return 0
    try:
        return _bench(args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_go_on(args)) from None


def _go_on(args: argparse.Namespace) -> str:
    return f"stopped; finished rounds are saved. To resume, run the same command, or: honestly bench --out {args.out}"


def _bench(args: argparse.Namespace) -> int:
    from honestly.runs.database import FILE
    from honestly.runs.store import Store
    from honestly.studies.limit import seconds_of
    from honestly.studies.study import Study, text_of

    args.ends = None if args.stop_after is None else time.time() + seconds_of(args.stop_after)
    text = None if args.study is None else text_of(args.study)
    study = None if text is None else Study.parse(text, str(args.study))
    if args.out is None:
        if study is None:
            raise ValueError("name a study, or the folder of one with --out; honestly bench --list shows some")
        args.out = Path("results") / study.name
    _check(args)
    if args.dry_run:
        return _dry_run(args, study)
    unknown = f"{args.out} has no study yet: name one, such as honestly bench quick --out {args.out}"
    if study is None and not args.imports and not (args.out / FILE).is_file():
        raise ValueError(unknown)  # before a store is made there
    with Store.open(args.out) as store:
        _take_in(args, store, args.imports)
        if study is None:
            if args.imports:
                return 0
            text = store.meta().get("study")
            if text is None:
                raise ValueError(unknown)
            study = Study.parse(text, str(args.out))
        entries = study.entries()
        store.add(entries, replace=args.replace)
        _take_in(args, store, args.reuse, only={entry.id for entry in entries})
        assert text is not None
        created = store.meta().get("created", f"{time.time():.0f}")
        store.set_meta(name=study.name, study=text, created=created)
        return _run_all(args, store, study, entries)


def _check(args: argparse.Namespace) -> None:
    from honestly.cli.simulate import device_of

    for name, least in (("workers", 0), ("together", 1), ("gpus_per_run", 0), ("cpus_per_run", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least {least}")
    if (args.ray is not None) + bool(args.workers) + (args.together > 1) > 1:
        raise ValueError("--ray, --workers and --together: choose one of them")
    if args.ray is None:
        args.device = device_of(args.device)
    elif args.device != "cpu" and not args.gpus_per_run:
        raise ValueError(f"--device {args.device} with --ray: give a share of a GPU, such as --gpus-per-run 0.25")


def _take_in(args: argparse.Namespace, store: Store, paths: list[Path], only: set[str] | None = None) -> None:
    from honestly.runs.transfer import take_in

    prefix = "dry run, nothing is saved: " if args.dry_run else ""
    for path in paths:
        result = take_in(store, path, only=only)
        if not args.quiet:
            print(f"{prefix}{path}: {result}", file=sys.stderr)


def _select_runs(args: argparse.Namespace, study: Study, entries: list[PlannedRun]) -> list[PlannedRun]:
    from honestly.studies.study import only, select, shard

    chosen = select(entries, only(args.only, study), None if args.shard is None else shard(args.shard))
    if not chosen:
        raise ValueError("--only and --shard select no runs")
    return chosen


@contextmanager
def _beforehand(args: argparse.Namespace) -> Generator[Store | None]:
    """The study's store; with --import or --reuse, a temporary copy that includes them."""
    from honestly.runs.database import FILE
    from honestly.runs.export import copy
    from honestly.runs.store import Store

    store = Store.read(args.out) if (args.out / FILE).is_file() else None
    with store or nullcontext():
        if not args.imports and not args.reuse:
            yield store
            return
        with TemporaryDirectory() as folder:
            if store is not None:
                copy(store, Path(folder) / FILE)
            with Store.open(folder) as store:
                _take_in(args, store, args.imports)
                yield store


def _dry_run(args: argparse.Namespace, study: Study | None) -> int:
    """Print what would be run, including the effect of --import and --reuse. Nothing is written."""
    from honestly.show.progress import duration
    from honestly.studies.estimate import estimate
    from honestly.studies.study import Study

    with _beforehand(args) as store:
        if study is None:
            text = "" if store is None else store.meta().get("study", "")
            study = Study.parse(text, str(args.out)) if text else None
        if study is None:
            raise ValueError("name a study, or the folder of one with --out; honestly bench --list shows some")
        entries = study.entries()
        if store is not None:
            _take_in(args, store, args.reuse, only={entry.id for entry in entries})
        left = estimate(_select_runs(args, study, entries), store, args.device)
    workers = max(1, args.workers)
    if args.json:
        print(json.dumps({"event": "dry-run", **vars(left), "workers": workers}))
        return 0
    todo = left.runs - left.done
    source = [f"{n} from {what}" for n, what in (
        (left.measured, "finished runs"), (left.calibrated, "a short calibration")) if n]  # fmt: skip
    print(f"{study.name}: {left.runs} runs, {left.done} done, {todo} to do with {left.rounds:,} rounds")
    if todo:
        print(f"about {duration(left.seconds)} on {args.device}, one run at a time ({', '.join(source)})")
        if workers > 1:
            print(f"about {duration(left.seconds / workers)} with {workers} workers, if each has its own cores")
    return 0


def _run_all(args: argparse.Namespace, store: Store, study: Study, entries: list[PlannedRun]) -> int:
    from honestly.cli.failures import DONE, INTERRUPTED, OUT_OF_TIME
    from honestly.show.progress import Lines, Live, Monitor
    from honestly.studies.limit import OutOfTimeError
    from honestly.studies.work import WorkOptions, free_the_dead

    chosen = _select_runs(args, study, entries)
    ids = {entry.id for entry in chosen}
    if not args.skip_failed:
        store.retry(ids)
    free_the_dead(store)
    options = WorkOptions(device=args.device, data=args.data, keep_models=args.keep_models, ends=args.ends)
    kind = Lines if args.json else Monitor if args.quiet else Live
    start = time.perf_counter()
    with kind(args.out, ids):
        try:
            status = DONE if _do(args, store, ids, options) else INTERRUPTED
        except OutOfTimeError:
            status = OUT_OF_TIME
    return _end(args, store, study, ids, time.perf_counter() - start, status)


def _do(args: argparse.Namespace, store: Store, ids: set[str], options: WorkOptions) -> bool:
    """Do the runs in the chosen way; False if it was stopped."""
    from honestly.studies.work import new_worker, one_by_one

    if args.ray is not None:
        from honestly.studies.cluster import on_ray

        return on_ray(store, ids, options, address=args.ray, gpus=args.gpus_per_run, cpus=args.cpus_per_run)
    if args.workers:
        from honestly.studies.workers import processes

        return processes(args.out, ids, args.workers, options)
    if args.together > 1:
        from honestly.studies.together import side_by_side

        return side_by_side(args.out, ids, args.together, options)
    return one_by_one(store, ids, new_worker(), options)


def _end(args: argparse.Namespace, store: Store, study: Study, ids: set[str], seconds: float, status: int) -> int:
    from honestly.cli.failures import DONE, FAILED, OUT_OF_TIME, complain
    from honestly.show.progress import duration
    from honestly.studies.study import describe

    runs = [run for run in store.runs() if run.id in ids]
    count = {status: sum(run.status == status for run in runs) for status in ("done", "failed")}
    left = len(runs) - sum(count.values())
    if args.json:
        print(json.dumps({"event": "end", **count, "left": left, "seconds": round(seconds, 3)}), flush=True)
    elif not args.quiet:
        print(f"{study.name}: {count['done']} of {len(runs)} runs done in {duration(seconds)}; {args.out}")
    failed = [run for run in runs if run.status == "failed"]
    for run in failed[:5]:
        complain("honestly bench", f"failed: {describe(run.cell)}: {run.error}", FAILED)
    if failed:
        complain("honestly bench", f"{len(failed)} run(s) failed; run the same command to try them again", FAILED)
    if status == OUT_OF_TIME:
        return complain("honestly bench", f"the time of --stop-after {args.stop_after} is up: {_go_on(args)}", status)
    if status != DONE:
        return complain("honestly bench", _go_on(args), status)
    return FAILED if failed or left else DONE
