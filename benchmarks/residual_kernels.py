"""Check and time the kernels of residual networks on a GPU: each one alone, and a whole training step.

    python benchmarks/residual_kernels.py [--json times.json]
    python benchmarks/residual_kernels.py --compare before.json after.json    # print a table, without a GPU

First every convolution and both of its gradients are checked against float64. Then each kernel of a step of 20 clients
with 128 images is timed alone, as a CUDA graph of several launches. The images are random pixels.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from honestly.sim.models import build
from honestly.sim.train import cuda
from honestly.sim.train.flat import Layout
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.replay import Graph
from honestly.sim.train.residual import launches, tiles
from honestly.sim.train.residual.launches import Before, NormalisedOutput, StepClients
from honestly.sim.train.residual.layout import NormalisedConvolution, ResidualNetwork
from honestly.sim.train.residual.step import Clones
from honestly.sim.train.schedule import Stack, plan
from honestly.sim.train.sgd import SGD

CLIENTS, BATCH, STEPS = 20, 128, 64
BOUND = {"y": 2e-3, "x": 2e-3, "filters": 1e-5}  # relative to the norm: bfloat16's own rounding, and float32 sums
SHOWN = (
    *("PLANE_H", "EXTENT", "STRIDE", "IN", "OUT"),
    *("NORMALISED", "HALVED", "ADD", "SIGNS", "SHORTCUT", "SHORTCUT_SUMS"),
)


def milliseconds(work: Callable[[], None], times: int = 10) -> float:
    """Of one call, which is in a graph: launches from Python would take longer than small kernels."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    results: list[float] = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        results.append(start.elapsed_time(end) / times)
    return statistics.median(results)


def network() -> ResidualNetwork:
    result = ResidualNetwork.of(build("resnet18_half", (3, 32, 32), 10, 0), (3, 32, 32))
    assert result is not None
    return result


def off(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


def errors(c: NormalisedConvolution) -> dict[str, float]:
    """How far a convolution and its gradients are from float64, relative to their norms."""
    make, half = torch.Generator("cuda").manual_seed(c.inside + c.side), torch.bfloat16
    counts = (BATCH, 77)  # a full mini-batch and a short one
    K, side = len(counts), c.side * c.stride

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make, device="cuda").to(half)

    x, gradient = noise(K, BATCH, side, side, c.inside), noise(K, BATCH, c.side, c.side, c.outside)
    weights = torch.tensor([[[1 / n if b < n else 0.0 for b in range(BATCH)] for n in counts]], device="cuda")
    at = StepClients(K, BATCH, weights, torch.zeros(1, dtype=torch.int64, device="cuda"))
    filters = noise(K, c.outside * c.extent**2 * c.inside)
    sums = torch.empty(tiles.sums_size(K, BATCH, c), device="cuda")
    y, back = torch.zeros_like(gradient), torch.zeros_like(x)
    grad = torch.zeros_like(filters, dtype=torch.float32)
    parts = torch.empty(tiles.parts_size(K, BATCH, c), device="cuda")
    plain = NormalisedConvolution(0, c.inside, 3, 1, side, c.filters, 0)
    norm = torch.zeros((K, 4, c.inside), device="cuda")
    norm[:, 1] = 1.0  # nothing is cut off
    c = NormalisedConvolution(c.inside, c.outside, c.extent, c.stride, c.side, 0, 0)
    launches.convolve(at, c, x, filters, y, sums)
    launches.weight_gradient(at, c, x, gradient, grad, parts)
    if c.extent == 3:
        launches.convolve_back(at, c, gradient, filters, Before(NormalisedOutput(plain, x, norm)), back, sums)
    worst = dict.fromkeys(("y", "filters", "x"), 0.0)
    for k, n in enumerate(counts):
        w = filters[k].double().view(c.outside, c.extent, c.extent, c.inside).permute(0, 3, 1, 2)
        a, g = (v[k, :n].double().permute(0, 3, 1, 2) for v in (x, gradient))
        options = {"stride": c.stride, "padding": c.extent // 2}
        result = grad[k].view(c.outside, c.extent, c.extent, c.inside).permute(0, 3, 1, 2)
        now = {
            "y": off(y[k, :n].permute(0, 3, 1, 2), conv2d(a, w, **options)),
            "filters": off(result, conv2d_weight(a, w.shape, g, **options)),
        }
        if c.extent == 3:
            now["x"] = off(back[k, :n].permute(0, 3, 1, 2), conv2d_input(a.shape, w, g, **options))
        worst = {key: max(value, now.get(key, 0.0)) for key, value in worst.items()}
    return worst


def check() -> bool:
    """Print the errors; whether all are within their bounds."""
    shapes = {(c.inside, c.outside, c.extent, c.stride, c.side): c for c in network().convolutions}
    good = True
    for shape, c in shapes.items():
        result = errors(c)
        fits = all(value < BOUND[key] for key, value in result.items())
        good = good and fits
        text = ", ".join(f"{key} {value:.2e}" for key, value in result.items())
        print(f"{'PASS' if fits else 'FAIL'} {shape}: {text}", flush=True)
    return good


def label(name: str, defines: tuple[str, ...]) -> str:
    """What a launch does, not how."""
    values = [line for line in defines if line.split()[0] in SHOWN]
    return " ".join([name, *["back"] * ("BACKWARD" in defines), *values])


def step() -> tuple[dict[str, list[float]], float]:
    """Milliseconds of every kernel of a step, and of a whole step."""
    rng, n = np.random.default_rng(0), CLIENTS * BATCH
    images = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    half = [0.5] * 3
    pixels = Pixels.of(images, np.arange(n), rng.integers(0, 10, n), mean=half, std=half, crop=4, device="cuda")
    parts = np.array_split(np.arange(n), CLIENTS)
    work = [plan([(STEPS, p)], batch=BATCH, rng=rng, flip=True, crop=4) for p in parts]
    stack = Stack.of(work, BATCH)
    clones = Clones(network(), CLIENTS, pixels, SGD(0.01, 0.9, 1e-4, True), BATCH)
    module = build("resnet18_half", (3, 32, 32), 10, 0)
    start = Layout.of_parameters(module).flatten(dict(module.named_parameters())).detach().cuda()
    graph = Graph(clones)
    graph.run(start, stack)
    assert graph.graph is not None
    whole: list[float] = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.t.zero_()
        clones.begin(start)
        begin.record()
        for _ in range(STEPS):
            graph.graph.replay()
        end.record()
        end.synchronize()
        whole.append(begin.elapsed_time(end) / STEPS)

    calls: list[tuple[Any, ...]] = []
    launch = cuda.launch

    def record(name: str, defines: Any, grid: Any, threads: int, args: Any, **more: Any) -> None:
        calls.append((name, defines, grid, threads, args, more))
        launch(name, defines, grid, threads, args, **more)

    clones.begin(start)
    graph.t.zero_()
    beside, clones.beside = clones.beside, None
    with mock.patch.object(cuda, "launch", record):
        clones.scheduled_step(graph.buffers, graph.t)
    clones.beside = beside
    graph.t.zero_()
    times: dict[str, list[float]] = {}
    known: dict[tuple[Any, ...], float] = {}
    for kernel, defines, grid, threads, args, more in calls:
        key = (kernel, tuple(defines), grid, *(a for a in args if isinstance(a, int)))
        if key not in known:
            known[key] = milliseconds(lambda: launch(kernel, defines, grid, threads, args, **more))  # noqa: B023
        times.setdefault(label(kernel, tuple(defines)), []).append(known[key])
    return times, min(whole)


def operations(text: str) -> float:
    """Floating point operations of a convolution or a gradient of it."""
    words = text.split()
    if words[0] not in ("convolve", "weight_gradient"):
        return 0.0
    value = {name: int(words[words.index(name) + 1]) for name in ("PLANE_H", "EXTENT", "IN", "OUT")}
    taps = (9 if "HALVED" in words else value["EXTENT"] ** 2) + ("SHORTCUT" in words)
    return 2.0 * CLIENTS * BATCH * value["PLANE_H"] ** 2 * value["IN"] * value["OUT"] * taps


def by_kind(times: dict[str, list[float]]) -> dict[str, float]:
    """Milliseconds of all launches of a kernel, the longest first."""
    kinds: dict[str, float] = {}
    for text, some in times.items():
        words = text.split()
        kind = " ".join(words[: 2 if words[1:2] == ["back"] else 1])
        kinds[kind] = kinds.get(kind, 0.0) + sum(some)
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def compare(paths: list[Path]) -> None:
    """The kernels of two measurements as a Markdown table."""
    before, after = (json.loads(path.read_text()) for path in paths)
    print("| kernels | before, ms | after, ms | |\n|---|---:|---:|---:|")
    first, second = by_kind(before["kernels"]), by_kind(after["kernels"])
    rows = [(name, value, second.get(name, 0.0)) for name, value in first.items()]
    for name, old, new in [*rows, ("**a whole step**", before["step"], after["step"])]:
        print(f"| {name} | {old:.2f} | {new:.2f} | {old / new:.2f}x |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2, metavar="JSON", help="print a table of two such files")
    options = parser.parse_args()
    if options.compare:
        compare(options.compare)
        return
    if not torch.cuda.is_available():
        parser.error("it measures a CUDA GPU, and PyTorch finds none here")
    if not check():
        raise SystemExit("a kernel is wrong")
    times, whole = step()
    for text in sorted(times, key=lambda text: -sum(times[text])):
        some = times[text]
        mean = statistics.mean(some)
        rate = f"{operations(text) / mean / 1e9:4.0f} TFLOP/s" if operations(text) else ""
        print(f"{len(some):3} x {1e3 * mean:7.1f} us {rate:13} {text}")
    kinds = by_kind(times)
    for text, sum_of_kind in kinds.items():
        print(f"{text:24} {sum_of_kind:7.3f} ms")
    total, speed = sum(kinds.values()), CLIENTS * BATCH / whole * 1e3
    print(f"{total:.2f} ms alone, a step {whole:.2f} ms, {speed:,.0f} images/s")
    if options.json:
        options.json.write_text(json.dumps({"kernels": times, "step": whole, "images/s": speed}, indent=1))


if __name__ == "__main__":
    main()
