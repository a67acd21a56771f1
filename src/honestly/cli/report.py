"""`honestly report`: a study, a run or a federation's history as pages, tables and pictures."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

EPILOG = """\
A folder is a study (study.sqlite, made by `honestly bench`), a run (`honestly simulate --out`), a folder of runs, or a
history that a federation's server wrote (`RobustFedAvg(history=...)`). Several are reported together.

The report has index.html and one page per run (self-contained), README.md, tables.tex (booktabs), cells.csv (the
paper's 540 numbers beside ours) and figures/ (PNG and SVG). The report of an unfinished study says what is missing.

examples:
  honestly report runs/a
  honestly report studies/tables studies/ablation studies/figure1 --out results
"""


def add(commands: Any) -> None:
    """Register `report`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write pages, tables and figures of a study, a run or a federation's history",
        description="Write pages, tables and figures of a study, a run or a federation's history.",
        epilog=EPILOG,
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="DIR", help="a study, a run, or a history")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write it (default: DIR/report)")
    parser.add_argument("--no-pages", action="store_true", help="write no page per run")
    parser.add_argument("--no-figures", action="store_true", help="write no PNG and SVG files")
    parser.add_argument(
        "--preface",
        type=Path,
        metavar="FILE",
        help="Markdown text that replaces the title and the commands in README.md",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=run, extra="cli")


def run(args: argparse.Namespace) -> int:
    """Write the report and say where it is."""
    from honestly.printable import printable
    from honestly.show.figure import available
    from honestly.show.report.generic import missing
    from honestly.show.report.sources import load, merge
    from honestly.show.report.write import ReportOptions, write

    first: Path = args.sources[0]
    loaded = [load(source) for source in args.sources]
    studies = merge(loaded)
    out: Path = args.out if args.out is not None else (first if first.is_dir() else first.parent) / "report"
    *paths, target = [_command_path(path) for path in (*args.sources, out)]
    bench = [
        ["bench", study.name, "--out", path] for study, path in zip(loaded, paths, strict=False) if _ships(study.name)
    ]
    commands = [*bench, ["report", *paths, "--out", target]]
    command = "\n".join(shlex.join(["honestly", *words]) for words in commands)
    preface = "" if args.preface is None else _preface(args.preface)
    options = ReportOptions(pages=not args.no_pages, figures=not args.no_figures, command=command, preface=preface)
    files = write(studies, out, options)
    if not args.quiet:
        for study in studies:
            print(printable(f"{study.name}: {'; '.join(missing(study))}"))
        if not args.no_figures and not available():
            print("no PNG and SVG files: they need matplotlib (pip install 'honestly[cli]')")
        print("\n".join(printable(file) for file in files))
    return 0


def _preface(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--preface {file}: it is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _command_path(path: Path) -> str:
    """A path in the commands of the report: a relative path unchanged, of an absolute one only the name."""
    return path.name if path.is_absolute() else str(path)


def _ships(study: str) -> bool:
    """Whether a study of that name comes with the package."""
    from importlib.resources import files

    return study.replace("-", "").isalnum() and (files("honestly.studies") / "shipped" / f"{study}.toml").is_file()
