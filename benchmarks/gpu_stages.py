"""Measure where the time of an aggregation on a GPU goes: kernels by CUDA events, stages on the host by its clock.

    python benchmarks/gpu_stages.py                    # 20 clients, 11,173,962 float32 parameters (ResNet-18)
    python benchmarks/gpu_stages.py --json benchmarks/results/aggregation-gpu-20.json        # the table of the docs

Times are medians in microseconds. The total is shown as a multiple of `X.mean(0)`, measured alternately with it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import honestly as hn
from honestly.engine.passes import passes_over
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=11_173_962)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the multiples here, as benchmarks/aggregation.py does")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it measures a CUDA GPU, and PyTorch finds none here")
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


if __name__ == "__main__":
    main()
