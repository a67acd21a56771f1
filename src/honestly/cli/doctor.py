"""`honestly doctor`: what is installed here, what is missing, and how to get it. Nothing is sent or downloaded."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

SCHEMA = "honestly-doctor/1"
#: Below this many free bytes a folder counts as full.
LITTLE = 200 << 20

EPILOG = """\
exit status
  0  nothing is wrong; missing extras and data sets are not errors
  1  something is wrong: a package that does not work or has the wrong version, or a folder that cannot be written or
     is almost full. The lines that begin with `problem` say which, and what to do
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "doctor",
        help="show what is installed and what is missing",
        description="Show versions, devices, extras, data sets and disk space of this machine. Nothing is sent or "
        "downloaded.",
        epilog=EPILOG,
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the data sets are (default: $HONESTLY_DATA)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found; the exit status says whether something is wrong."""
    facts = examine(args.data)
    if args.json:
        print(json.dumps(facts, indent=1))
    else:
        _print(facts)
    return 1 if facts["problems"] else 0


def examine(data: Path | None = None) -> dict[str, Any]:
    """All findings as plain values. Problems of this machine are listed under `problems` and never raise."""
    from honestly._version import __version__

    problems: list[str] = []
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "honestly": __version__,
        "installed": str(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.machine()}",
        "core": _core(problems),
        "extras": _extras(problems),
        "devices": _devices(problems),
        "data": _data(data, problems),
        "folders": _folders(data, problems),
    }
    return {**facts, "problems": problems, "ok": not problems}


def _core(problems: list[str]) -> list[dict[str, Any]]:
    from honestly.cli.requirements import pip_line, requirements

    needed = [r for r in requirements() if not r.extra]
    for r in needed:
        if r.installed is None or r.problem:
            problems.append(f"{r.problem or f'{r.name} is not installed'}: {pip_line('')}")
    return [{"name": r.name, "needed": r.bounds, "version": r.installed} for r in needed]


def _extras(problems: list[str]) -> list[dict[str, Any]]:
    from honestly.cli.requirements import pip_line, requirements

    extras: dict[str, list[Any]] = {}
    for r in requirements():
        if r.extra:
            extras.setdefault(r.extra, []).append(r)
    for r in {r.name: r for needed in extras.values() for r in needed if r.problem}.values():
        problems.append(f"{r.problem}: {pip_line(r.extra)}")
    return [
        {
            "extra": extra,
            "complete": all(r.installed and not r.problem for r in needed),
            "found": {r.name: r.installed for r in needed if r.installed},
            "missing": [r.name for r in needed if not r.installed],
            "install": pip_line(extra),
        }
        for extra, needed in extras.items()
    ]


def _devices(problems: list[str]) -> dict[str, Any]:
    from honestly.cores import usable_cores
    from honestly.kernels.rows import PROGRAM

    # null: large updates are averaged by a compiled program
    devices: dict[str, Any] = {"cpu": {"cores": usable_cores(), "averages_not_compiled": PROGRAM.reason()}, "cuda": []}
    try:
        import torch
    except ImportError as error:
        if getattr(error, "name", None) != "torch":  # installed but broken
            problems.append(f"torch does not load ({_first_line(error)}): reinstall it")
        return devices
    except Exception as error:
        problems.append(f"torch does not load ({_first_line(error)}): reinstall it")
        return devices
    from honestly.sim.train.compiled.build import reason

    devices["cpu"]["threads"] = torch.get_num_threads()
    devices["cpu"]["not_compiled"] = reason()  # null: small models are trained by a compiled program
    try:
        if torch.cuda.is_available():
            for i in range(torch.cuda.device_count()):
                about = torch.cuda.get_device_properties(i)
                devices["cuda"].append({"name": about.name, "memory": about.total_memory})
    except Exception as error:
        problems.append(f"CUDA does not work ({_first_line(error)}): use --device cpu, or repair the driver")
    return devices


def _data(data: Path | None, problems: list[str]) -> list[dict[str, Any]]:
    from honestly.sim.data import DATASETS

    rows: list[dict[str, Any]] = []
    for name, source in DATASETS.items():
        try:
            place = source.find(data)
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
            place = None
            problems.append(f"cannot look for data set {name}: {_first_line(error)}; name a folder with --data")
        rows.append({"name": name, "where": None if place is None else str(place)})
    return rows


def _folders(data: Path | None, problems: list[str]) -> list[dict[str, Any]]:
    """Where files will be written: the folder of runs and that of the data sets."""
    from honestly.sim.data.files import home

    places = [("current folder", Path.cwd)]
    places.append(("data sets", lambda: home(data)))
    rows: list[dict[str, Any]] = []
    for use, find in places:
        row: dict[str, Any] = {"use": use, "path": None, "writable": False, "free": None}
        rows.append(row)
        try:
            path = find()
            row["path"] = str(path)
            there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
            row["writable"] = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
            row["free"] = shutil.disk_usage(there).free
        except (OSError, RuntimeError) as error:
            problems.append(f"{use}: {_first_line(error)}; {_elsewhere(use)}")
            continue
        if not row["writable"]:
            problems.append(f"{use} {path} cannot be written; {_elsewhere(use)}")
        elif row["free"] < LITTLE:
            problems.append(f"{use} {path} has only {_size(row['free'])} free; {_elsewhere(use)}")
    return rows


def _elsewhere(use: str) -> str:
    return "name another with --data or HONESTLY_DATA" if use == "data sets" else "work in another folder, or use --out"


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


def _print(facts: dict[str, Any]) -> None:
    from honestly.show.aggregate_page import shown

    rows: list[tuple[str, str]] = [
        ("honestly", f"{facts['honestly']} in {facts['installed']}"),
        ("python", f"{facts['python']}, {facts['system']}, {facts['executable']}"),
    ]
    rows += [(package["name"], package["version"] or "not installed") for package in facts["core"]]
    for extra in facts["extras"]:
        have = ", ".join(f"{name} {version}" for name, version in extra["found"].items())
        lacks = f"missing: {', '.join(extra['missing'])}; {extra['install']}" if extra["missing"] else ""
        rows.append((f"extra {extra['extra']}", "; ".join(part for part in (have, lacks) if part)))
    cpu = facts["devices"]["cpu"]
    rows.append(("cpu", f"{cpu['cores']} cores"))
    why = cpu["averages_not_compiled"]
    rows.append(("averages", f"by NumPy, slower: {why}" if why else "by a compiled program, if they are large"))
    if "not_compiled" in cpu:
        slower = f"by PyTorch, several times slower than by a compiled program: {cpu['not_compiled']}"
        rows.append(("small models", slower if cpu["not_compiled"] else "trained by a compiled program"))
    gpus = [f"{gpu['name']}, {_size(gpu['memory'])}" for gpu in facts["devices"]["cuda"]]
    rows += [("cuda", gpu) for gpu in gpus or ["none"]]
    for data in facts["data"]:
        rows.append((f"data {data['name']}", data["where"] or "not here: downloaded when it is first used"))
    for folder in facts["folders"]:
        state = "writable" if folder["writable"] else "not writable"
        free = "" if folder["free"] is None else f", {_size(folder['free'])} free"
        rows.append((folder["use"], f"{folder['path'] or 'unknown'}: {state}{free}"))
    rows += [("problem", problem) for problem in facts["problems"]]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:{width}}  {shown(text)}")
    if not facts["problems"]:
        print("nothing is wrong")
