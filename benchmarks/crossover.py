"""Find the number of clients above which residuals are cheaper than the Gram matrix, by timing both for rising K.

python benchmarks/crossover.py [--parameters 20000]
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time

import numpy as np

import honestly as hn

engine = importlib.import_module("honestly.engine.run")


def time_rule(X: np.ndarray, rule: hn.Rule, stream_from: int) -> float:
    engine.STREAM_FROM = stream_from
    start = time.perf_counter()
    hn.aggregate(X, rule)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=20_000)
    parser.add_argument("--clients", default="250,500,1000,1500,2000,3000")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'K':>6} {'rule':<22} {'Gram':>10} {'residuals':>10}   (multiples of X.mean(0))")
    for K in map(int, options.clients.split(",")):
        X = np.random.default_rng(0).standard_normal((K, options.parameters), dtype=np.float32)
        for rule in (hn.Bayesian(), hn.GeometricMedian()):
            ratios: tuple[list[float], list[float]] = ([], [])
            for _ in range(options.rounds):
                start = time.perf_counter()
                X.mean(0)
                mean = time.perf_counter() - start
                for result, stream_from in zip(ratios, (10**9, 2), strict=True):
                    result.append(time_rule(X, rule, stream_from) / mean)
            gram, residuals = map(statistics.median, ratios)
            print(f"{K:>6} {type(rule).__name__:<22} {gram:>10.1f} {residuals:>10.1f}")


if __name__ == "__main__":
    main()
