"""Time and memory of averaging K checkpoint files, compared with reading their bytes and with averaging in memory.

    python benchmarks/checkpoints.py --clients 20 --megabytes 100 --folder /tmp/checkpoints --repeats 5

The contestants run in turn, each in its own process, `repeats` times. Medians are printed with their ratio to `cat` of
the same files to /dev/null, twice: no robust rule can do with less than two passes over the bytes. The files are warm
(in the page cache) unless they are larger than memory. Peak memory is that of the whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

FORMAT = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}

# Not ru_maxrss: it counts the memory of the process that started this one.
PEAK = """
def peak():
    return float(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
"""
HONESTLY = """
import sys, time
from honestly.aggregate import aggregate
from honestly.sources.checkpoints import Checkpoints
rule, device, out, files = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
if device != "cpu":
    import torch
    torch.zeros(1, device=device)
begin, cpu = time.perf_counter(), time.process_time()
aggregate(Checkpoints(files, device=device), rule, out=out)
print(time.perf_counter() - begin, time.process_time() - cpu, peak())
"""
IN_MEMORY = """
import sys, time, torch
from safetensors.torch import load_file, save_file
out, files = sys.argv[3], sys.argv[4:]
begin, cpu = time.perf_counter(), time.process_time()
clients = [load_file(name) for name in files]
save_file({name: torch.stack([client[name] for client in clients]).mean(0) for name in clients[0]}, out)
print(time.perf_counter() - begin, time.process_time() - cpu, peak())
"""


def make_files(folder: Path, clients: int, megabytes: int, dtype: str) -> list[str]:
    """Write client files of one model without a library; a fifth of them have the signs of the weights flipped."""
    width, itemsize = 1024, 4 if dtype == "float32" else 2
    layers = max(1, megabytes * 10**6 // (width * width * itemsize))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for i in range(layers):
        for name, shape in ((f"layers.{i}.weight", [width, width]), (f"layers.{i}.bias", [width])):
            end = at + int(np.prod(shape)) * itemsize
            header[name] = {"dtype": FORMAT[dtype], "shape": shape, "data_offsets": [at, end]}
            at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    files: list[str] = []
    for k in range(clients):
        path = folder / f"client-{k:02d}.safetensors"
        if not path.exists() or path.stat().st_size != 8 + len(text) + at:
            own = np.random.default_rng(1000 + k)
            with path.open("wb") as stream:
                stream.write(struct.pack("<Q", len(text)) + text)
                for i in range(layers):
                    base = np.random.default_rng(i).standard_normal((width + 1, width), dtype=np.float32)
                    noise = own.standard_normal((width + 1, width), dtype=np.float32)
                    values = (-1.0 if k < clients // 5 else 1.0) * base + 0.01 * noise
                    values = values.astype(np.float32)
                    if dtype == "bfloat16":
                        stream.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
                    else:
                        stream.write(values.astype(dtype).tobytes())
        files.append(str(path))
    return files


Run = tuple[float, float, float]  # wall seconds, processor seconds, peak memory in MB


def cat_twice(files: list[str]) -> Run:
    begin = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(2):
        with Path("/dev/null").open("wb") as null:
            subprocess.run(["cat", *files], stdout=null, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begin, cpu, float("nan")


def run(script: str, rule: str, device: str, out: str, files: list[str]) -> Run:
    command = [sys.executable, "-c", PEAK + script, rule, device, out, *files]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, cpu, megabytes = (float(word) for word in done.stdout.split())
    return seconds, cpu, megabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=100, help="size of each client's file")
    parser.add_argument("--dtype", default="float32", choices=list(FORMAT))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rules", default="mean,bayesian,median")
    parser.add_argument("--devices", default="cpu", help="comma-separated, such as cpu,cuda")
    parser.add_argument("--no-memory", action="store_true", help="skip the contestant that loads all files")
    parser.add_argument(
        "--folder", type=Path, help="where to create (and keep) the files (default: a temporary folder)"
    )
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="checkpoints-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        files = make_files(folder, args.clients, args.megabytes, args.dtype)
        size = sum(Path(name).stat().st_size for name in files)
        contestants: dict[str, Callable[[], Run]] = {"cat, twice": lambda: cat_twice(files)}
        for device in args.devices.split(","):
            for rule in args.rules.split(","):
                out = str(folder / f"global-{device}-{rule}.safetensors")
                name = f"honestly {rule}" + ("" if device == "cpu" else f", {device}")
                contestants[name] = lambda r=rule, d=device, o=out: run(HONESTLY, r, d, o, files)
        if not args.no_memory:
            out = str(folder / "global-stacked.safetensors")
            contestants["safetensors + torch.stack().mean()"] = lambda: run(IN_MEMORY, "", "", out, files)
        cat_twice(files)  # warm-up
        results: dict[str, list[Run]] = {name: [] for name in contestants}
        for _ in range(args.repeats):
            for name, contestant in contestants.items():
                results[name].append(contestant())
        show(results, f"{args.clients} clients of {size / args.clients / 1e6:.0f} MB {args.dtype}, {size / 1e9:.2f} GB")
    finally:
        for output in folder.glob("global-*"):
            output.unlink()
        if args.folder is None:
            shutil.rmtree(folder)


def show(results: dict[str, list[Run]], what: str) -> None:
    cores, limit = len(os.sched_getaffinity(0)), statistics.median(run[0] for run in results["cat, twice"])
    work = statistics.median(run[1] for run in results["cat, twice"])
    load = os.getloadavg()[0]
    print(f"{what}; {processor()}, {cores} cores, load {load:.1f}, {len(results['cat, twice'])} repeats")
    print(f"{'':36s} {'seconds':>8s} {'(spread)':>13s} {'x cat':>6s} {'CPU s':>7s} {'x cat':>6s} {'peak MB':>8s}")
    for name, runs in results.items():
        seconds, cpu = statistics.median(run[0] for run in runs), statistics.median(run[1] for run in runs)
        spread, peak = (
            f"{min(run[0] for run in runs):.2f}-{max(run[0] for run in runs):.2f}",
            max(run[2] for run in runs),
        )
        memory = "" if peak != peak else f"{peak:8.0f}"
        print(f"{name:36s} {seconds:8.2f} {spread:>13s} {seconds / limit:6.2f} {cpu:7.2f} {cpu / work:6.2f} {memory}")


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
