"""Time and memory of every rule compared with the plain mean and with other libraries, in one run on one array.

    python benchmarks/aggregation.py                         # 20 clients, 11,173,962 float32 parameters (ResNet-18)
    python benchmarks/aggregation.py --clients 10000 --parameters 61706 --rules mean,bayesian,geometric_median
    python benchmarks/aggregation.py --device cuda           # torch on a GPU: absolute times as well
    python benchmarks/aggregation.py --load 4 --kernels compiled,Haswell,Zen,SkylakeX,plain

Every contender runs once per round, and the table shows medians, as multiples of `X.mean(0)` measured in the same
round: other load on the machine affects all of them alike. Peers (byzfl, flwr) are shown if they are installed.

`--load N` measures our rules again while N other processes keep the machine busy, relative to a mean under the same
load. `--busy` is for a machine that has other work to do: times are then processor seconds, and ours are divided by our
number of threads, which is the time that idle cores would take if they shared the work evenly. The loaded run measures
wall time. `--kernels` runs everything in a separate process for each kind of kernels: `compiled` uses what this machine
has; `Haswell`, `Zen` and `SkylakeX` use these kernels of OpenBLAS without our compiled program; `plain` uses the
installed BLAS without our compiled program. Kernels that this processor cannot run are reported.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from machines import busy, kernels, other_data, processor

import honestly as hn
from honestly.engine.passes.plan import threads

warnings.filterwarnings("ignore")
PEERS = ("byzfl", "flower", "np.median")


def our_rules(f: int) -> dict[str, hn.Rule]:
    """The rules that a peer also has, and our own, with the same f as the peers."""
    return {
        "mean": hn.Mean(),
        "bayesian": hn.Bayesian(),
        "bayesian_paper": hn.Bayesian(variant="paper"),
        "median": hn.Median(),
        "trimmed_mean": hn.TrimmedMean(trim=0.2),
        "geometric_median": hn.GeometricMedian(),
        "krum": hn.Krum(f=f),
        "multi_krum": hn.MultiKrum(f=f),
        "bulyan": hn.Bulyan(f=f),
        "centered_clipping": hn.CenteredClipping(),
    }


def byzfl_rules(f: int) -> dict[str, Callable[[Any], Any]]:
    """ByzFL's aggregators. ByzFL imports torchvision and plotting libraries that aggregation does not use."""
    try:
        for library in ("torchvision", "seaborn", "matplotlib"):
            if importlib.util.find_spec(library) is None:
                for name in ("", ".datasets", ".transforms", ".models", ".pyplot"):
                    sys.modules[library + name] = MagicMock(__spec__=None, __path__=[])
        import byzfl
    except Exception as error:
        print(f"byzfl is left out: {error!r}", file=sys.stderr)
        return {}
    return {
        "mean": byzfl.Average(),
        "median": byzfl.Median(),
        "trimmed_mean": byzfl.TrMean(f=f),
        "geometric_median": byzfl.GeometricMedian(),
        "krum": byzfl.Krum(f=f),
        "multi_krum": byzfl.MultiKrum(f=f),
        "centered_clipping": byzfl.CenteredClipping(),
    }


def flower_rules(f: int, K: int) -> dict[str, Callable[[Any], Any]]:
    """The functions behind Flower's strategies; they take a list of (arrays, number of examples)."""
    try:
        from flwr.server.strategy import aggregate as fl
    except ImportError as error:
        print(f"flwr is left out: {error!r}", file=sys.stderr)
        return {}

    def on_rows(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda X: function([([row], 1) for row in X])

    return {
        "mean": on_rows(fl.aggregate),
        "median": on_rows(fl.aggregate_median),
        "trimmed_mean": on_rows(lambda results: fl.aggregate_trimmed_avg(results, 0.2)),
        "krum": on_rows(lambda results: fl.aggregate_krum(results, f, 0)),
        "multi_krum": on_rows(lambda results: fl.aggregate_krum(results, f, K - f)),
        "bulyan": on_rows(lambda results: fl.aggregate_bulyan(results, f, fl.aggregate_krum, to_keep=0)),
    }


def peak_resident(work: Callable[[], Any]) -> float:
    """Largest increase of the resident memory, in bytes, while `work` ran (Linux)."""
    status = Path("/proc/self/status")

    def read(field: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field)) * 1024

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read("VmRSS")
    work()
    return read("VmHWM") - before


class Clock:
    """Wall time of one call until the device has finished, or its processor time divided by the number of threads."""

    def __init__(self, device: str, threads: int = 0) -> None:
        self.cuda, self.threads = device == "cuda", threads

    def __call__(self, work: Callable[[], Any], *, ours: bool = False) -> float:
        if self.threads:
            start = time.process_time()
            work()
            return (time.process_time() - start) / (self.threads if ours else 1)
        if not self.cuda:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        import torch

        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=11_173_962)
    parser.add_argument("--f", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rules", default="", help="comma-separated; default: all")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--load", type=int, default=0, help="measure again with this many busy processes")
    parser.add_argument("--busy", action="store_true", help="measure processor time, for a machine with other work")
    parser.add_argument("--kernels", default="", help="comma-separated: compiled, plain, or core types of OpenBLAS")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    runs = in_turn(options) if options.kernels else [measure(options)]
    if options.json is not None:
        options.json.write_text(json.dumps(runs[0] if len(runs) == 1 else {"runs": runs}, indent=1))


def in_turn(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure with each kind of kernels, each in its own process."""
    runs: list[dict[str, Any]] = []
    for kind in options.kernels.split(","):
        variables = {**os.environ, "HONESTLY_COMPILE": "1" if kind == "compiled" else "0"}
        if kind not in ("compiled", "plain"):
            variables["OPENBLAS_CORETYPE"] = kind
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            words = [word for word in sys.argv[1:] if not word.startswith(("--kernels", "--json"))]
            for name in (options.kernels, str(options.json)):
                if name in words:
                    words.remove(name)
            if kind != options.kernels.split(",")[0]:
                words.append("--no-peers")
            command = [sys.executable, __file__, *words, "--json", str(path)]
            status = subprocess.run(command, env=variables, check=False).returncode
            if status:
                print(f"\n{kind}: this processor cannot run them (status {status})")
                continue
            runs.append(json.loads(path.read_text()))
    return runs


def measure(options: argparse.Namespace) -> dict[str, Any]:
    K, d, f = options.clients, options.parameters, options.f
    X: Any
    if options.device == "cuda":
        import torch

        X = torch.randn((K, d), device="cuda")
        machine, how = torch.cuda.get_device_name(), "CUDA"
    else:
        X = np.random.default_rng(0).standard_normal((K, d), dtype=np.float32)
        machine, how = f"{processor()}, {len(os.sched_getaffinity(0))} cores", kernels()
    contenders: dict[tuple[str, str], Callable[[], Any]] = {}
    wanted = set(options.rules.split(",")) if options.rules else None
    peers: dict[str, dict[str, Callable[[Any], Any]]] = {}
    if not options.no_peers and options.device == "cpu":
        peers = {"byzfl": byzfl_rules(f), "flower": flower_rules(f, K)}
    ours = {name: rule for name, rule in our_rules(f).items() if wanted is None or name in wanted}
    for name, rule in ours.items():
        contenders[name, "honestly"] = lambda rule=rule: hn.aggregate(X, rule)
        for peer, table in peers.items():
            if name in table:
                contenders[name, peer] = lambda work=table[name]: work(X)
        if name == "median" and options.device == "cpu" and not options.no_peers:
            contenders[name, "np.median"] = lambda: np.median(X, axis=0)

    clock = Clock(options.device, threads() if options.busy else 0)
    memory = {key: peak_resident(work) if options.device == "cpu" else 0.0 for key, work in contenders.items()}
    for _ in range(3 if options.device == "cuda" else 1):
        clock(lambda: X.mean(0))
    times, means = in_rounds(contenders, lambda: X.mean(0), clock, options.rounds)
    if options.device == "cpu":  # one form after the other: together they may not fit in memory
        for form, make in other_data(X).items():
            if options.busy and form == "state dicts":
                continue  # mostly Python on one thread: dividing by the number of threads would be too favourable
            values = make()
            some = {
                (name, form): (lambda rule=rule, values=values: hn.aggregate(values, rule))
                for name, rule in ours.items()
                if name in ("mean", "bayesian", "median")
            }
            memory |= {key: peak_resident(work) for key, work in some.items()}
            times |= in_rounds(some, lambda: X.mean(0), clock, options.rounds)[0]
            del values, some
    loaded: dict[tuple[str, str], list[float]] = {}
    load = round(os.getloadavg()[0]) if options.busy else options.load
    if load:
        some = {key: work for key, work in contenders.items() if key[1] == "honestly"}
        with busy(options.load):
            loaded = in_rounds(some, lambda: X.mean(0), Clock(options.device), options.rounds)[0]
    figures = report(machine, how, K, d, statistics.median(means), times, memory, loaded, load)
    return figures | {"busy": True} if options.busy else figures


def in_rounds(
    contenders: dict[tuple[str, str], Callable[[], Any]], mean: Callable[[], Any], clock: Clock, rounds: int
) -> tuple[dict[tuple[str, str], list[float]], list[float]]:
    """Each contender's times as multiples of the mean measured just before, and the times of the mean."""
    means: list[float] = []
    times: dict[tuple[str, str], list[float]] = {key: [] for key in contenders}
    for _ in range(rounds):
        slow = statistics.median(times[key][-1] for key in times) if means else 0
        for key, work in contenders.items():
            if times[key] and times[key][-1] > max(20.0, 50 * slow):
                continue  # a peer that takes minutes is measured once
            means.append(clock(mean))
            times[key].append(clock(work, ours=key[1] not in PEERS) / means[-1])
    return times, means


def report(
    machine: str, how: str, K: int, d: int, mean: float, times: dict[tuple[str, str], list[float]],
    memory: dict[tuple[str, str], float], loaded: dict[tuple[str, str], list[float]], load: int,
) -> dict[str, Any]:  # fmt: skip
    print(f"\n{K} clients, {d:,} float32 parameters on {machine}, {how}; X.mean(0) took {mean * 1e3:.2f} ms (median)")
    print("time as a multiple of X.mean(0); extra peak memory as a multiple of one model;")
    print(f"loaded: with {load} busy processes, as a multiple of X.mean(0) under the same load\n" if load else "")
    print(
        f"{'rule':<18} {'who':<12} {'median':>8} {'min':>8} {'max':>8} {'memory':>8} {'loaded':>8} {'against ours':>13}"
    )
    rows = []
    for (name, who), ratios in times.items():
        ours = statistics.median(times[name, "honestly"])
        ratio = statistics.median(ratios)
        extra = memory[name, who] / (4 * d)
        under = statistics.median(loaded[name, who]) if (name, who) in loaded else None
        against = "" if who == "honestly" else f"{ratio / ours:.2f}x"
        text = "" if under is None else f"{under:.2f}"
        spread = f"{min(ratios):8.2f} {max(ratios):8.2f}"
        print(f"{name:<18} {who:<12} {ratio:8.2f} {spread} {extra:8.2f} {text:>8} {against:>13}")
        rows.append({"rule": name, "who": who, "ratio": ratio, "ratios": ratios, "memory": extra, "loaded": under})
    return {"machine": machine, "kernels": how, "K": K, "d": d, "mean_ms": mean * 1e3, "load": load, "rows": rows}


if __name__ == "__main__":
    main()
