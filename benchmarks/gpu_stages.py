"""Measure where the time of an aggregation on a GPU goes: kernels by CUDA events, stages on the host by its clock.

    python benchmarks/gpu_stages.py                    # 20 clients, 11,173,962 float32 parameters (ResNet-18)
    python benchmarks/gpu_stages.py --forms            # also alternative forms of the kernels
    python benchmarks/gpu_stages.py --json benchmarks/results/aggregation-gpu-20.json        # the table of the docs

Times are medians in microseconds. The total is shown as a multiple of `X.mean(0)`, measured alternately with it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import re
import statistics
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

import honestly as hn
from honestly.engine.passes import passes_over
from honestly.kernels.torch_private import compile_kernel
from honestly.sources import open_source


def wall(work: Callable[[], Any], repeats: int) -> list[float]:
    """Microseconds per call until the device has finished."""
    results: list[float] = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        results.append((time.perf_counter() - start) * 1e6)
    return results


def on_device(work: Callable[[], Any], repeats: int) -> list[float]:
    """Microseconds that the device spent on the kernels of each call, by its own clock."""
    results: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(100_000)  # the launch itself must not be measured
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        results.append(start.elapsed_time(end) * 1e3)
    return results


def show(name: str, times: list[float], mean: float) -> None:
    middle = statistics.median(times)
    print(f"{name:<34} {middle:9.1f} us  (min {min(times):8.1f}, max {max(times):8.1f})  {middle / mean:6.2f} x mean")


def stages(X: torch.Tensor, repeats: int) -> tuple[float, list[dict[str, Any]]]:
    """Measure some rules alternately with the plain mean: its microseconds, and the others as multiples of it."""
    rules: dict[str, hn.Rule] = {"bayesian": hn.Bayesian(), "mean": hn.Mean(), "multi_krum": hn.MultiKrum(f=4)}
    rules |= {"geometric_median": hn.GeometricMedian(), "median": hn.Median(), "trimmed_mean": hn.TrimmedMean()}
    rules["bulyan"] = hn.Bulyan(f=4)
    for rule in rules.values():
        hn.aggregate(X, rule)
    means: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(repeats):
        for name, rule in rules.items():
            means += wall(lambda: X.mean(0), 1)
            times[name] += wall(lambda rule=rule: hn.aggregate(X, rule), 1)
    mean = statistics.median(means)
    show("X.mean(0)", means, mean)
    show("X.mean(0) on the device", on_device(lambda: X.mean(0), repeats), mean)
    rows: list[dict[str, Any]] = []
    for name, rule in rules.items():
        show(f"aggregate, {name}", times[name], mean)
        in_a_row = wall(lambda rule=rule: hn.aggregate(X, rule), repeats)
        show("  the same rule many times in a row", in_a_row, mean)
        ratio, row = (round(statistics.median(spent) / mean, 2) for spent in (times[name], in_a_row))
        rows.append({"rule": name, "who": "honestly", "ratio": ratio, "in_a_row": row, "memory": None})
    return mean, rows


def timeline(X: Any, repeats: int) -> None:
    """Median start and end of each part of an aggregation, in microseconds from its start."""
    engine = importlib.import_module("honestly.engine.run")
    passes = type(passes_over(open_source(X)))
    parts = [(importlib.import_module("honestly.aggregate"), "open_source"), (passes, "gram")]
    parts += [(engine, "measure"), (hn.Bayesian, "mix"), (passes, "mix"), (engine, "average")]
    parts += [(engine, "describe"), (engine, "_assemble")]
    marks: dict[str, list[tuple[float, float]]] = {}
    start = 0.0

    def traced(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*args, **named)
            finally:
                marks.setdefault(name, []).append((began - start, time.perf_counter() - start))

        return timed

    before = [(owner, name, getattr(owner, name)) for owner, name in parts]
    for owner, name, work in before:
        setattr(owner, name, traced(f"{getattr(owner, '__name__', '')}.{name}", work))
    try:
        for _ in range(repeats):
            torch.cuda.synchronize() if X.is_cuda else None
            start = time.perf_counter()
            hn.aggregate(X, hn.Bayesian())
            marks.setdefault("all", []).append((0.0, time.perf_counter() - start))
    finally:
        for owner, name, work in before:
            setattr(owner, name, work)
    for name, spans in sorted(marks.items(), key=lambda item: statistics.median(began for began, _ in item[1])):
        began, ended = (1e6 * statistics.median(span[i] for span in spans[len(spans) // 3 :]) for i in (0, 1))
        print(f"  {name:<34} {began:8.1f} .. {ended:8.1f}   {ended - began:8.1f} us")


def forms(X: torch.Tensor, repeats: int, mean: float) -> None:
    """Compare the shipped kernels with others: stages of the ring, columns per thread of `mix`, unrolling."""
    from honestly.engine.passes import cuda_kernels as ours

    text = files("honestly.kernels").joinpath("passes", "kernels.cu").read_text(encoding="utf-8")
    (K, n), device = X.shape, X.device.index
    value = torch.empty(n, device=X.device)
    flag = ours.Flag(device)
    steps = min(512, -(-n // (256 * ours._processors(device))))
    grid = -(-n // (ours.THREADS * steps))
    partial = torch.empty((grid, K * (K + 1) // 2), dtype=torch.float64, device=X.device)
    own, numbers = ours._own(device), [ours._int(n), ours._int(X.stride(0))]

    def form(label: str, name: str, defines: tuple[str, ...], grid: int, threads: int, arguments: list[Any],
             **changes: str) -> None:  # fmt: skip
        changed = text
        for old, new in changes.items():
            changed, count = re.subn(PATTERNS[old], new, changed)
            assert count, old
        head = "".join(f"#define {line}\n" for line in ("TYPE_FLOAT", *defines))
        kernel = compile_kernel(head + changed, name)
        show(label, on_device(lambda: ours._launch(kernel, device, grid, threads, arguments), repeats), mean)

    tensors = [ours._pointer(tensor) for tensor in (X, X, partial, own.products, own.ended)]
    for stages in ("2", "3", "4"):
        defines = (f"ROWS {K}", f"THREADS {ours.THREADS}", "MIDDLE 2")
        arguments = [*tensors, *numbers, ours._int(steps)]
        form(
            f"gram, ring of {stages}", "gram", defines, grid, ours.THREADS, arguments, stages=f"#define STAGES {stages}"
        )
    weights = (ctypes.c_float * K)(*[1 / K] * K)
    for columns in (1, 2, 4, 8):
        for unroll in ("4", ""):
            changes = {"columns": f"#define COLUMNS {columns}", "unroll": f"#pragma unroll {unroll}\n\\1"}
            arguments = [ours._pointer(X), weights, ours._pointer(value), ours._pointer(flag.raised), *numbers]
            label = f"mix, {columns} columns, unroll {unroll or 'all'}"
            form(label, "mix", (f"CLIENTS {K}",), -(-n // (256 * columns)), 256, arguments, **changes)


PATTERNS = {
    "stages": r"#define STAGES .*",
    "columns": r"#define COLUMNS .*",
    "unroll": r"#pragma unroll \d*\n(    for \(int k = 0; k < CLIENTS)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=11_173_962)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--forms", action="store_true", help="also measure alternative forms of the kernels")
    parser.add_argument("--json", type=Path, help="write the multiples here, as benchmarks/aggregation.py does")
    options = parser.parse_args()
    X = torch.randn((options.clients, options.parameters), device="cuda")
    print(f"{torch.cuda.get_device_name()}, {options.clients} clients, {options.parameters:,} float32 parameters")
    mean, rows = stages(X, options.repeats)
    if options.json:
        K, d = X.shape
        results = {
            "machine": torch.cuda.get_device_name(),
            "K": K,
            "d": d,
            "mean_ms": round(mean / 1e3, 4),
            "rows": rows,
        }
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    timeline(X, options.repeats)
    if options.forms:
        forms(X, options.repeats, mean)


if __name__ == "__main__":
    main()
