"""Compare `robust_all_reduce` with `dist.all_reduce` in one run: time, bytes and the time of each stage.

python benchmarks/allreduce.py [--ranks 4,8] [--parameters 10000000] [--rounds 7] [--json FILE] [--page]

The ranks are processes on this machine that communicate over gloo. Every round times the plain mean and each rule in
turn, so other load on the machine affects all of them alike; ratios are relative to the plain mean of the same round.
Bytes are what the loopback interface carried, per rank.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import honestly as hn

RULES: dict[str, Any] = {
    "mean": "mean",
    "bayesian": "bayesian",
    "geometric_median": "geometric_median",
    "multi_krum": None,  # with f = K // 4
    "median": "median",
    "trimmed_mean": None,
}
PAGE = Path(__file__).parent.parent / "docs" / "results" / "allreduce.md"
STAGES = ("exchange", "measure", "decide", "average", "gather", "other")


def shapes(parameters: int) -> list[int]:
    """Sizes of tensors like those of a network: some large, many small."""
    large = [parameters // 8] * 7
    small = [512, 64] * 20
    return [*large, *small, parameters - sum(large) - sum(small)]


def rules(K: int) -> dict[str, Any]:
    return {**RULES, "multi_krum": hn.MultiKrum(f=K // 4), "trimmed_mean": hn.TrimmedMean(f=K // 4)}


class Stages:
    """Time spent inside some functions, by stage."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def watch(self, owner: Any, name: str, stage: str) -> None:
        inner = getattr(owner, name)

        def timer(*arguments: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*arguments, **more)
            finally:
                self.seconds[stage] += time.perf_counter() - began

        setattr(owner, name, timer)


def bytes_received() -> int:
    """Bytes that the loopback interface has received so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def memory(call: Callable[[], Any]) -> int:
    """Largest growth of the process during a call, in bytes."""
    ctypes.CDLL(None).malloc_trim(0)  # return freed memory to the system
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _status("VmRSS")
    call()
    return 1024 * (_status("VmHWM") - before)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def rank(me: int, K: int, folder: str, parameters: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=me, world_size=K)
    from honestly.engine.pipeline import Pipeline
    from honestly.torch import passes, reduction, robust_all_reduce

    stages = Stages()
    stages.watch(reduction.Reduction, "send", "exchange")
    stages.watch(reduction.Reduction, "land", "exchange")
    stages.watch(passes.OwnPasses, "gram", "measure")
    stages.watch(Pipeline, "decide", "decide")
    stages.watch(passes.OwnPasses, "mix", "average")
    stages.watch(passes.OwnPasses, "reduce", "average")
    stages.watch(reduction.Reduction, "gather", "gather")
    generator = torch.Generator().manual_seed(me)
    flat = torch.randn(parameters, generator=generator) + 0.1
    sizes = shapes(parameters)

    def plain() -> None:
        dist.all_reduce(flat.clone())

    def robust(rule: Any, **more: Any) -> None:
        robust_all_reduce(flat.clone(), rule=rule, layers=sizes, inplace=True, **more)

    calls: dict[str, Callable[[], Any]] = {"all_reduce": plain}
    for name, rule in rules(K).items():
        calls[name] = partial(robust, rule)
    calls["bayesian, verify=1"] = partial(robust, "bayesian", verify=1.0)
    seconds: dict[str, list[float]] = defaultdict(list)
    shares: dict[str, list[dict[str, float]]] = defaultdict(list)
    sent: dict[str, list[float]] = defaultdict(list)
    for round_ in range(rounds + 1):
        for name, call in calls.items():
            dist.barrier()
            stages.seconds.clear()
            before, began = bytes_received(), time.perf_counter()
            call()
            took = time.perf_counter() - began
            dist.barrier()
            if round_:  # the first one is a warm-up
                seconds[name].append(took)
                sent[name].append((bytes_received() - before) / K)
                shares[name].append({**stages.seconds, "other": took - sum(stages.seconds.values())})
    grown: dict[str, float] = {}
    for name, call in calls.items():
        dist.barrier()
        grown[name] = memory(call)
    if me == 0:
        results = {
            name: {
                "memory": grown[name],
                "seconds": statistics.median(seconds[name]),
                "ratio": statistics.median(a / b for a, b in zip(seconds[name], seconds["all_reduce"], strict=True)),
                "bytes": statistics.median(sent[name]),
                "stages": {s: statistics.median(share.get(s, 0.0) for share in shares[name]) for s in STAGES},
            }
            for name in calls
        }
        (Path(folder) / "found.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def measure(K: int, parameters: int, rounds: int) -> dict[str, Any]:
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HONESTLY_THREADS": "1"}  # as torchrun does
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (K, folder, parameters, rounds), nprocs=K)
        return json.loads((Path(folder) / "found.json").read_text())


def table(results: dict[str, Any], K: int, parameters: int) -> str:
    update = 4 * parameters
    lines = [
        f"{K} ranks, {parameters:,} float32 parameters in {len(shapes(parameters))} tensors:",
        "",
        "| | time | sent per rank | memory | exchange | measure | decide | average | gather | other |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in results.items():
        label = "`dist.all_reduce`" if name == "all_reduce" else f"`{name}`"
        cells = [f"{1e3 * row['stages'][s]:.1f} ms" if name != "all_reduce" else "" for s in STAGES]
        sizes = [f"{row[what] / update:.2f}" for what in ("bytes", "memory")]
        lines.append("| " + " | ".join([label, f"{row['ratio']:.2f}x", *sizes, *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", action="store_true", help="rewrite the tables of docs/results/allreduce.md")
    options = parser.parse_args()
    tables: list[str] = []
    every: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "parameters": options.parameters,
    }
    for K in map(int, options.ranks.split(",")):
        every[str(K)] = measure(K, options.parameters, options.rounds)
        tables.append(table(every[str(K)], K, options.parameters))
        print(tables[-1], end="\n\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(every, indent=1) + "\n")
    if options.page:
        text = PAGE.read_text(encoding="utf-8")
        head, _, rest = text.partition("<!-- measured -->")
        _, _, tail = rest.partition("<!-- /measured -->")
        about = f"Measured on {every['machine']}, PyTorch {torch.__version__.split('+')[0]}, gloo, one thread per rank."
        body = "\n\n".join([about, *tables])
        PAGE.write_text(f"{head}<!-- measured -->\n{body}\n<!-- /measured -->{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
