"""`honestly aggregate`: one robust average of K checkpoint files, and a report on the clients."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from honestly.cli.clients import client_ids, client_labels, client_sizes
from honestly.cli.failures import DONE, FAILED, complain
from honestly.cli.output import handle_termination, identity, open_target
from honestly.cli.output import progress as progress_bar

if TYPE_CHECKING:
    from honestly.result import Aggregate

EXCLUSIONS = 3

DESCRIPTION = """\
Average K model files into one, robustly, in bounded memory, and say which clients were believed.

FILES are safetensors files, folders of shards (model.safetensors.index.json), LoRA adapter folders (PEFT) or .npz
files, one per client. A client whose file cannot be used is excluded and named; it does not stop the run.
OUT is a .safetensors or .npz file, or a folder with the same shards as the inputs. An existing OUT is replaced only
when the new one is complete. OUT must not be one of FILES. A result of an earlier run among FILES is excluded, because
it is not a client.
"""
EPILOG = """\
exit status
  0    OUT was written, and every client was used (or --exclusions ok)
  1    too few usable clients, a full disk, or an excluded client with --exclusions fail; OUT is unchanged
  2    the command line is wrong, or names a place that cannot be written; OUT is unchanged
  3    OUT was written, and at least one client was excluded (--exclusions status, the default)
  130  interrupted; OUT is unchanged, unless the message says that it was written

examples
  honestly aggregate client-*.safetensors -o global.safetensors
  honestly aggregate site-*/ -o global --reference previous --rule nnm:f=2+krum:f=2 --report report.html
  honestly aggregate adapter-*/ -o merged --lora svd --rank 16
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "aggregate",
        help="average K checkpoint files robustly",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("files", nargs="+", metavar="FILES", help="one file or folder per client")
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="where the average is written")
    parser.add_argument(
        "--rule",
        default="bayesian",
        metavar="RULE",
        help="a rule with its settings: krum:f=2; mixers come first, joined by +: nnm:f=4+multi_krum:f=4,keep=8; or "
        "file.py:Class of your own; see `honestly rules` (default: %(default)s)",
    )
    parser.add_argument(
        "--pre",
        action="append",
        default=[],
        metavar="MIXER",
        help="a mixer before those of --rule; may be repeated",
    )
    parser.add_argument("--reference", metavar="FILE", help="the previous global model, which is trusted")
    parser.add_argument("--sizes", metavar="FILE", help="client sizes: JSON by id or in order, or lines `id,size`")
    parser.add_argument(
        "--ids",
        metavar="NAMES",
        help="client names in order, separated by commas, or @FILE with one per line (default: the file names)",
    )
    parser.add_argument(
        "--names", metavar="FILE.json", help="names for the table and the reports: JSON from client id to name"
    )
    parser.add_argument(
        "--report", action="append", default=[], metavar="FILE", help="write a report, .html or .json; may be repeated"
    )
    parser.add_argument(
        "--exclusions",
        choices=["ok", "status", "fail"],
        default="status",
        help="what an excluded client means for the exit status (default: %(default)s)",
    )
    parser.add_argument(
        "--lora",
        choices=["exact", "svd", "factors"],
        default="exact",
        help="how the mean of LoRA products is written (default: %(default)s)",
    )
    parser.add_argument(
        "--buffers",
        choices=["follow", "judge", "ignore"],
        default="follow",
        help="what to do with BatchNorm's running means and variances: average them with the weights found on the "
        "parameters, judge them like parameters, or keep those of the reference (without one, of a central client) "
        "(default: %(default)s)",
    )
    parser.add_argument("--rank", type=int, help="rank of the result for --lora svd (default: that of most clients)")
    parser.add_argument("--allow-torch", action="store_true", help="read PyTorch files too, with weights_only=True")
    parser.add_argument("--follow-symlinks", action="store_true", help="read through symbolic links")
    parser.add_argument(
        "--allow-results",
        action="store_true",
        help="treat files that this command wrote, such as the averages of edge servers, as clients; "
        "otherwise they are excluded",
    )
    parser.add_argument("--allow-overwrite", action="store_true", help="let OUT replace one of FILES")
    parser.add_argument(
        "--device", default="cpu", help="cpu, or cuda to stream the blocks through a GPU (default: %(default)s)"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--quiet", action="store_true", help="print nothing but errors")
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Average, report, and return the exit status."""
    before = identity(args.out)
    try:
        with handle_termination():
            return _run(args)
    except KeyboardInterrupt:  # maybe while the report was written, after OUT
        same = identity(args.out) == before
        ending = "the output is unchanged" if same else f"{args.out} was written nevertheless"
        raise KeyboardInterrupt(f"interrupted; {ending}") from None


def _run(args: argparse.Namespace) -> int:
    import warnings

    from honestly.aggregate import aggregate
    from honestly.engine import Pipeline
    from honestly.show.aggregate_page import as_html, as_json, check_target, show, write
    from honestly.sources.checkpoints import Checkpoints
    from honestly.sources.checkpoints.conflicts import check_place

    steps = Pipeline.of("+".join([*args.pre, args.rule]), own=True)
    if args.sizes is not None and not steps.uses_sizes:
        remedy = "write mean:sizes=capped or mean:sizes=trusted, or " if steps.rule.name == "mean" else ""
        raise ValueError(f"--sizes {args.sizes}: {steps} ignores sizes; {remedy}leave --sizes out")
    ids = client_ids(args.ids, args.files)
    for target in args.report:
        check_target(target)
    if not args.allow_overwrite:
        check_place(Path(args.out), args.files)
    paths: dict[Any, str] = dict(zip(client_labels(ids, args.names), args.files, strict=True))
    # without a Gram matrix the distances are not known yet: one more pass measures them
    explain = bool(args.report) or args.json or not (args.quiet or steps.gram_needed)
    passes = 1 + steps.gram_needed + explain + 2 / len(ids)
    with warnings.catch_warnings(record=True) as warned, progress_bar(args.quiet or args.json, passes) as progress:
        warnings.simplefilter("always")
        files = Checkpoints(
            paths, lora=args.lora, rank=args.rank, allow_torch=args.allow_torch,
            follow_symlinks=args.follow_symlinks, device=args.device, progress=progress,
            buffers=args.buffers, allow_results=args.allow_results, allow_overwrite=args.allow_overwrite,
        )  # fmt: skip
        with open_target(args.out, args.exclusions) as target:
            result = aggregate(
                files,
                steps,
                reference=args.reference,
                sizes=client_sizes(args.sizes, ids),
                out=target.out,
                explain=explain,
            )
            if result.excluded and args.exclusions == "fail":
                status = FAILED
            else:
                target.keep()
                status = EXCLUSIONS if result.excluded and args.exclusions == "status" else DONE
    notes = [str(warning.message) for warning in warned if issubclass(warning.category, UserWarning)]
    report = as_json(
        result, rule=args.rule, pre=args.pre, out=None if status == FAILED else args.out, paths=paths, notes=notes
    )
    for file in args.report:
        try:
            write(file, as_html(report) if file.endswith((".html", ".htm")) else json.dumps(report, indent=1) + "\n")
        except OSError as error:
            addition = "" if status == FAILED else f"; {args.out} was written nevertheless"
            raise OSError(error.errno, f"the report cannot be written: {error.strerror}{addition}", file) from error
    if args.json:
        print(json.dumps(report, indent=1))
    elif not args.quiet:
        show(report)
    for note in notes:
        print(f"honestly aggregate: warning: {note}", file=sys.stderr)
    return complain("honestly aggregate", _exclusion_message(result), FAILED) if status == FAILED else status


def _exclusion_message(result: Aggregate) -> str:
    listed = "; ".join(f"client {name!r}: {reason}" for name, reason in result.reasons.items())
    return f"clients were excluded, and --exclusions fail was given; {listed}"
