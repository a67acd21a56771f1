"""Time and memory of averaging K checkpoint files, against reading their bytes and against the usual way in memory.

    python benchmarks/checkpoints.py --clients 20 --megabytes 100 --folder /tmp/checkpoints --repeats 5

Each contestant runs in its own process, one after the other, `repeats` times round; medians are printed with their
ratio to `cat` of the same files to /dev/null, twice: two passes over the bytes are the limit of every robust rule.
The files are warm (in the page cache) unless they are larger than memory. Peak memory is that of the whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Not ru_maxrss: it counts the memory of the process that started this one.
PEAK = """
def peak():
    return float(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
"""
HONESTLY = """
import sys, time
from honestly.aggregate import aggregate
rule, out, files = sys.argv[1], sys.argv[2], sys.argv[3:]
begin = time.perf_counter()
aggregate(files, rule, out=out)
print(time.perf_counter() - begin, peak())
"""
IN_MEMORY = """
import sys, time, torch
from safetensors.torch import load_file, save_file
rule, out, files = sys.argv[1], sys.argv[2], sys.argv[3:]
begin = time.perf_counter()
clients = [load_file(name) for name in files]
save_file({name: torch.stack([client[name] for client in clients]).mean(0) for name in clients[0]}, out)
print(time.perf_counter() - begin, peak())
"""


def make_files(folder: Path, clients: int, megabytes: int, dtype: str) -> list[str]:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    width, layers = 1024, max(1, megabytes * 10**6 // (1024 * 1024 * (4 if dtype == "float32" else 2)))
    files: list[str] = []
    for k in range(clients):
        path = folder / f"client-{k:02d}.safetensors"
        if not path.exists():
            model = {}
            for i in range(layers):
                torch.manual_seed(i)
                base = torch.randn(width, width)
                torch.manual_seed(1000 + i + 100_000 * k)
                sign = -1.0 if k < clients // 5 else 1.0
                model[f"layers.{i}.weight"] = (sign * base + 0.01 * torch.randn(width, width)).to(kind)
                model[f"layers.{i}.bias"] = torch.randn(width).to(kind)
            save_file(model, path, metadata={"format": "pt"})
        files.append(str(path))
    return files


def cat_twice(files: list[str]) -> tuple[float, float]:
    begin = time.perf_counter()
    for _ in range(2):
        with Path("/dev/null").open("wb") as null:
            subprocess.run(["cat", *files], stdout=null, check=True)
    return time.perf_counter() - begin, float("nan")


def run(script: str, rule: str, out: str, files: list[str]) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", PEAK + script, rule, out, *files], capture_output=True, text=True, check=True)
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=100, help="of each client's file")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rules", default="mean,bayesian,median")
    parser.add_argument("--no-memory", action="store_true", help="leave the way that loads all files out")
    parser.add_argument("--folder", type=Path, help="where the files are made (and kept); a temporary one by default")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="checkpoints-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        files = make_files(folder, args.clients, args.megabytes, args.dtype)
        size = sum(Path(name).stat().st_size for name in files)
        out = str(folder / "global.safetensors")
        contestants = {"cat, twice": lambda: cat_twice(files)}
        for rule in args.rules.split(","):
            contestants[f"honestly {rule}"] = lambda rule=rule: run(HONESTLY, rule, out, files)
        if not args.no_memory:
            contestants["safetensors + torch.stack().mean()"] = lambda: run(IN_MEMORY, "", out, files)
        cat_twice(files)  # warm
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for _ in range(args.repeats):
            for name, contestant in contestants.items():
                found[name].append(contestant())
        limit = statistics.median(seconds for seconds, _ in found["cat, twice"])
        print(
            f"{args.clients} clients of {size / args.clients / 1e6:.0f} MB {args.dtype}, {size / 1e9:.2f} GB in all; ",
            end="",
        )
        print(
            f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, {args.repeats} repeats"
        )
        rows = []
        for name, runs in found.items():
            seconds = statistics.median(t for t, _ in runs)
            spread = f"{min(t for t, _ in runs):.2f}-{max(t for t, _ in runs):.2f}"
            peak = max(m for _, m in runs)
            rows.append({"name": name, "seconds": seconds, "spread": spread, "ratio": seconds / limit, "peak_mb": peak})
            memory = "" if peak != peak else f"{peak:8.0f} MB peak"
            print(f"{name:36s} {seconds:7.2f} s ({spread})  {seconds / limit:5.2f} x  {memory}")
        if args.json:
            args.json.write_text(json.dumps({"args": vars(args) | {"folder": "", "json": ""}, "rows": rows}, indent=1))
    finally:
        if args.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
