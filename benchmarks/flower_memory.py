"""Peak memory and time of Flower's strategies on the same replies, beyond the replies themselves.

    python benchmarks/flower_memory.py [--parameters 11170000] [--clients 20] [--json FILE]

Each strategy runs in its own process. The peak is the growth of the resident set after the replies are complete, in
multiples of the model's size. Time is relative to the mean of NumPy arrays in the same process.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

STRATEGIES = ("FedAvg", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "RobustFedAvg",
              "RobustFedAvg median", "RobustFedAvg trimmed_mean", "RobustFedAvg multi_krum")  # fmt: skip


def resident() -> int:
    """Bytes of memory that the process holds now."""
    return field_of_status("VmRSS")


def field_of_status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def build(name: str, clients: int):
    import flwr.serverapp.strategy as flower

    from honestly.flower import RobustFedAvg
    from honestly.rules import make

    f = (clients - 3) // 4
    if name.startswith("RobustFedAvg"):
        rule = name.partition(" ")[2] or "bayesian"
        return RobustFedAvg(rule=make(rule, **({"f": f, "keep": clients - f} if rule == "multi_krum" else {})))
    options = {"Krum": {"num_malicious_nodes": f}, "Bulyan": {"num_malicious_nodes": f},
               "MultiKrum": {"num_malicious_nodes": f, "num_nodes_to_select": clients - f}}  # fmt: skip
    return getattr(flower, name)(**options.get(name, {}))


def measure(name: str, parameters: int, clients: int) -> dict[str, float]:
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict

    rng = np.random.default_rng(0)
    sizes = [parameters // 2, parameters // 4, parameters // 8, parameters - 7 * (parameters // 8)]
    strategy = build(name, clients)
    replies = []
    for k in range(clients):
        arrays = ArrayRecord({f"layer{i}": Array(rng.random(n, dtype=np.float32)) for i, n in enumerate(sizes)})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 100, "loss": 0.1})})
        meta = Metadata(1, "", 1000 + k, 1, "x", "", 0.0, 10.0, "train")
        replies.append(Message(content=content, metadata=meta))
    model = 4 * parameters
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # do not count what building the replies left behind
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak of the resident set
    before, peak, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    arrays, _ = strategy.aggregate_train(1, replies)
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    high = max(peak[0], field_of_status("VmHWM"))
    assert arrays is not None
    del arrays, strategy
    rows = [
        np.frombuffer(m.content["arrays"]["layer1"].data, np.float32, offset=128)
        for m in replies
        if m.content["arrays"]
    ]
    ratio = float("nan")
    if len(rows) == clients:  # some strategies empty the replies that they read
        started = time.perf_counter()
        np.mean(rows, axis=0)
        ratio = seconds / ((time.perf_counter() - started) * parameters / sizes[1])
    return {"strategy": name, "peak_models": (high - before) / model, "seconds": seconds, "times_np_mean": ratio,
            "maxrss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=11_170_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.parameters, args.clients)))
        return
    print(f"{args.clients} replies of {args.parameters:,} float32; {platform.processor() or platform.machine()}, "
          f"{os.cpu_count()} cores, Python {platform.python_version()}")  # fmt: skip
    print(f"{'strategy':28} {'peak, models':>12} {'seconds':>8}")
    rows = []
    for name in STRATEGIES:
        if args.only and args.only not in name:
            continue
        command = [
            sys.executable,
            __file__,
            "--child",
            name,
            "--parameters",
            str(args.parameters),
            "--clients",
            str(args.clients),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if result.returncode:
            print(f"{name:28} failed: {(result.stderr.strip().splitlines() or ['?'])[-1][:80]}")
            continue
        row = json.loads(result.stdout.splitlines()[-1])
        rows.append(row)
        print(f"{name:28} {row['peak_models']:12.2f} {row['seconds']:8.2f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
