"""Where the time of an aggregation on a GPU goes: kernels by CUDA events, the host's stages by its clock.

    python benchmarks/gpu_stages.py                    # 20 clients, 11,173,962 float32 parameters (ResNet-18)
    python benchmarks/gpu_stages.py --forms            # also other forms of the kernels, to choose from

Times are medians in microseconds. The whole is shown as a multiple of `X.mean(0)`, measured in turns with it.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
import torch

import honestly as hn
from honestly.passes import BETWEEN, cuda_kernels, passes_over
from honestly.rules.base import GramGeometry
from honestly.sources import open_source
from honestly.survey import Survey


def wall(work: Callable[[], Any], repeats: int) -> list[float]:
    """Microseconds of each call, until the device has finished."""
    found: list[float] = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e6)
    return found


def on_device(work: Callable[[], Any], repeats: int) -> list[float]:
    """Microseconds that the device spent on each call's kernels, by its own clock."""
    found: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(100_000)  # the launch itself must not be measured
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    return found


def show(name: str, times: list[float], mean: float) -> None:
    middle = statistics.median(times)
    print(f"{name:<34} {middle:9.1f} us  (min {min(times):8.1f}, max {max(times):8.1f})  {middle / mean:6.2f} x mean")


def stages(X: torch.Tensor, repeats: int) -> float:
    """One aggregation, then its parts."""
    rules: dict[str, hn.Rule] = {"bayesian": hn.Bayesian(), "mean": hn.Mean(), "multi_krum": hn.MultiKrum(f=4)}
    rules |= {"geometric_median": hn.GeometricMedian(), "median": hn.Median(), "trimmed_mean": hn.TrimmedMean()}
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
    for name in rules:
        show(f"aggregate, {name}", times[name], mean)
    source = open_source(X)
    passes = passes_over(source)
    G = passes.gram(range(len(X)), BETWEEN)
    weights = np.full(len(X), 1 / len(X))
    parts: dict[str, Callable[[], Any]] = {
        "open the source": lambda: open_source(X),
        "prepare the passes and the survey": lambda: Survey(source, passes_over(source)),
        "gram pass, between three": lambda: passes.gram(range(len(X)), BETWEEN),
        "gram pass, about a client": lambda: passes.gram(range(len(X)), 3),
        "the rule": lambda: hn.Bayesian().mix(GramGeometry(G)),
        "mix pass and its verdict": lambda: passes.mix(weights, range(len(X)))[1](),
    }
    for name, work in parts.items():
        show(f"host: {name}", wall(work, repeats), mean)
    return mean


def launches(X: torch.Tensor, kernel: Any, grid: int, threads: int, arguments: list[Any]) -> Callable[[], None]:
    return lambda: kernel(grid=(grid, 1, 1), block=(threads, 1, 1), args=arguments)


def forms(X: torch.Tensor, repeats: int, mean: float) -> None:
    """The shipped kernels and others: stages of the ring, threads of a block; columns of a thread, unrolling, hints."""
    text = files("honestly.passes").joinpath("kernels.cu").read_text(encoding="utf-8")
    (K, n), processors = X.shape, cuda_kernels._processors(X.device.index)
    value = torch.empty(n, device=X.device)
    weights = torch.full((K + 1,), 1 / K, device=X.device)

    def compiled(name: str, *defines: str, **changes: str) -> Any:
        changed = text
        for old, new in changes.items():
            changed, found = re.subn(PATTERNS[old], new, changed)
            assert found, old
        head = "".join(f"#define {line}\n" for line in ("TYPE_FLOAT", *defines))
        return torch.cuda._compile_kernel(head + changed, name)

    for threads in (128, 256):
        for ring in ("MIDDLE == 1 ? 3 : 4", "3", "2", ""):
            if threads == 256 and ring != "2" and ring:
                continue  # more than 48 KB
            for kind in (2, 0):
                changes = {"stages": f"#define STAGES ({ring})"} if ring else {"ring": "#if 0\n// Values"}
                defines = (f"ROWS {K}", f"THREADS {threads}", f"MIDDLE {kind}", "SINGLE")
                steps = min(512, -(-n // (256 * processors)))
                grid = -(-n // (threads * steps))
                partial = torch.empty((grid, 1, K * (K + 1) // 2), dtype=torch.float64, device=X.device)
                try:
                    kernel = compiled("gram", *defines, **changes)
                    work = launches(X, kernel, grid, threads, [X, X, partial, K, n, X.stride(0), steps])
                    label = f"gram {threads} threads, ring {ring[-2:] or 'none'}, middle {kind}"
                    show(label, on_device(work, repeats), mean)
                except Exception as error:
                    print(f"gram {threads} {ring} {kind}: {error}")
    for columns in (1, 2, 4, 8):
        for unroll in ("4", "", "10"):
            for hint in (False, True):
                changes = {"columns": f"#define COLUMNS {columns}", "unroll": f"#pragma unroll {unroll}\n\\1"}
                changes |= {"load": r"widen(__ldcs(&x[(long long)k * stride + column]))"} if hint else {}
                kernel = compiled("mix", f"CLIENTS {K}", **changes)
                work = launches(X, kernel, -(-n // (256 * columns)), 256, [X, weights, value, n, X.stride(0)])
                label = f"mix {columns} columns, unroll {unroll or 'all'}{', streaming' * hint}"
                show(label, on_device(work, repeats), mean)


PATTERNS = {
    "stages": r"#define STAGES .*",
    "ring": r"#if defined\(SINGLE\) && defined\(TYPE_FLOAT\) .*\n// Values",
    "columns": r"#define COLUMNS .*",
    "unroll": r"#pragma unroll \d*\n(    for \(int k = 0; k < CLIENTS)",
    "load": r"widen\(x\[\(long long\)k \* stride \+ column\]\)(?=, value)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=11_173_962)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--forms", action="store_true", help="also other forms of the kernels")
    options = parser.parse_args()
    X = torch.randn((options.clients, options.parameters), device="cuda")
    print(f"{torch.cuda.get_device_name()}, {options.clients} clients, {options.parameters:,} float32 parameters")
    mean = stages(X, options.repeats)
    if options.forms:
        forms(X, options.repeats, mean)


if __name__ == "__main__":
    main()
