"""Compare the speed of training all clients at once with that of a plain PyTorch loop, in one run.

    python benchmarks/simulation.py --device cpu
    python benchmarks/simulation.py --device cuda --parts check,lenet,endtoend,resnet --out results.json

The setting is the paper's: 20 clients, batch size 128, SGD with Nesterov momentum. The images are random pixels (speed
does not depend on their content). The plain loop is what most code does: a `DataLoader` that pads and normalises one
image at a time, `nn.Module`, autograd and `torch.optim.SGD`, one client after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from simulation_page import table
from torch import nn
from torch.utils.data import DataLoader, Dataset

from honestly.sim.models import build
from honestly.sim.train.batched import BatchedTrainer
from honestly.sim.train.compiled.build import library
from honestly.sim.train.compiled.trainer import CompiledTrainer
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.residual.trainer import ResidualTrainer
from honestly.sim.train.schedule import plan
from honestly.sim.train.sequential import SequentialTrainer, Speed
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model, Trainer

SGD_PAPER = SGD(0.01, 0.9, 1e-4)
CLIENTS, BATCH = 20, 128


def pixels(n: int, size: tuple[int, int, int], device: str, seed: int = 0) -> Pixels:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *size), dtype=np.uint8)
    half = [0.5] * size[0]
    return Pixels.of(images, np.arange(n), rng.integers(0, 10, n), mean=half, std=half, device=device)


def schedules(n: int, epochs: int, clients: int = CLIENTS):
    parts = np.array_split(np.arange(n), clients)
    return [plan([(epochs, p)], batch=BATCH, rng=np.random.default_rng(k)) for k, p in enumerate(parts)]


def processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def sync(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


Pass = Callable[[], float]  # does the work once and returns images per second


def best(once: Pass, repeats: int = 3) -> float:
    """The best of a few runs after a warm-up."""
    once()
    return max(once() for _ in range(repeats))


def training(trainer: Trainer, model: nn.Module, work, device: str) -> Pass:
    start = Model.of(model, device)

    def once() -> float:
        sync(device)
        beginning = time.perf_counter()
        trainer.train(start, work)
        sync(device)
        return sum(s.images for s in work) / (time.perf_counter() - beginning)

    return once


class PlainImages(Dataset):
    """Convert one image at a time to float, pad it to 32 x 32 and normalise it."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int):
        x = torch.from_numpy(self.images[i]).float().div(255)
        return nn.functional.pad(x, (2, 2, 2, 2)).sub_(0.5).div_(0.5), int(self.labels[i])


def plain(images: int, device: str, workers: int) -> Pass:
    """The plain loop on LeNet-5."""
    rng = np.random.default_rng(0)
    data = PlainImages(rng.integers(0, 256, (images, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, images))
    model = build("lenet5", (1, 32, 32), 10, 0).to(device)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, nesterov=True)

    def once() -> float:
        sync(device)
        beginning = time.perf_counter()
        for x, y in DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=workers):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimiser.step()
        sync(device)
        return images / (time.perf_counter() - beginning)

    return once


def check(device: str) -> dict[str, float]:
    """The largest difference of a parameter between this device's batched path and the plain path on the CPU."""
    results = {}
    for name, size in (("lenet5", (1, 32, 32)), ("cnn", (1, 8, 8)), ("mlp", (1, 8, 8))):
        model = build(name, size, 10, 0)
        parts = [np.arange(k * 40, k * 40 + 20 + 30 * k) for k in range(5)]  # uneven, with partial batches
        work = [plan([(1, p[:10]), (2, p)], batch=32, rng=np.random.default_rng(k)) for k, p in enumerate(parts)]
        plain_path = SequentialTrainer(model, pixels(400, size, "cpu"), SGD(0.05, 0.9, 1e-4), 32)
        expected = plain_path.train(Model.of(model), work)
        store = pixels(400, size, device)
        start = Model.of(model, device)
        ways: tuple[bool | None, ...] = (None,) if device == "cpu" else (None, False)
        for at_once, fused in ((5, way) for way in ways):
            trainer = BatchedTrainer(model, store, SGD(0.05, 0.9, 1e-4), 32, at_once=at_once, fused=fused)
            for _ in range(2):  # the second run replays what the first captured
                trained = trainer.train(start, work)
            results[f"{name}, batched, {at_once} at once{'' if fused is None else f', fused={fused}'}"] = float(
                (trained.theta.cpu() - expected.theta).abs().max()
            )
            a = trainer.logits(Model.of(model, device), store).cpu()
            b = plain_path.logits(Model.of(model), pixels(400, size, "cpu"))
            results[f"{name}, logits"] = float((a - b).abs().max())
        if device == "cpu" and CompiledTrainer.supports(model, store):
            trained = CompiledTrainer(model, store, SGD(0.05, 0.9, 1e-4), 32).train(start, work)
            results[f"{name}, compiled"] = float((trained.theta - expected.theta).abs().max())
        if device != "cpu":
            for lanes in (1, 2):
                trainer = SequentialTrainer(model, store, SGD(0.05, 0.9, 1e-4), 32, speed=Speed(lanes=lanes))
                for _ in range(2):
                    trained = trainer.train(start, work)
                results[f"{name}, graphs, {lanes} lanes"] = float((trained.theta.cpu() - expected.theta).abs().max())
    model = build("resnet18_half", (3, 32, 32), 10, 0)
    work = [plan([(1, np.arange(40 * k, 40 * k + 30))], batch=16, rng=np.random.default_rng(k)) for k in range(3)]
    expected = SequentialTrainer(model, pixels(200, (3, 32, 32), "cpu"), SGD_PAPER, 16).train(Model.of(model), work)
    trained = SequentialTrainer(model, pixels(200, (3, 32, 32), device), SGD_PAPER, 16, speed=Speed(lanes=2)).train(
        Model.of(model, device), work
    )
    results["resnet18_half, graphs"] = float((trained.theta.cpu() - expected.theta).abs().max())
    return results


def lenet(device: str, clients: int, images: int, epochs: int, fused: bool | None = None) -> Pass:
    """Local training of all clients; on a CPU ``fused`` is the compiled program, if there is one."""
    model = build("lenet5", (1, 32, 32), 10, 0)
    store = pixels(images, (1, 32, 32), device)
    trainer: Trainer
    if fused is None and CompiledTrainer.supports(model, store):
        trainer = CompiledTrainer(model, store, SGD_PAPER, BATCH)
    else:
        trainer = BatchedTrainer(model, store, SGD_PAPER, BATCH, fused=fused if device != "cpu" else None)
    return training(trainer, model, schedules(images, epochs, clients), device)


def side_by_side(images: int, epochs: int, repeats: int = 8) -> dict[str, dict[str, float]]:
    """Time the plain loop and all clients at once alternately on a CPU, and take the best of each."""
    ways = {
        ("plain", "0 workers"): plain(images, "cpu", 0),
        ("plain", "2 workers"): plain(images, "cpu", 2),
        ("lenet", "PyTorch alone"): lenet("cpu", CLIENTS, images, epochs, False),
    }
    if library() is not None:
        ways["lenet", "compiled"] = lenet("cpu", CLIENTS, images, epochs)
    results: dict[str, dict[str, float]] = {"plain": {}, "lenet": {}}
    for number in range(repeats + 1):  # the first one is a warm-up
        for (part, name), once in ways.items():
            time.sleep(0.5)  # wait until the threads of the previous one no longer spin
            speed = once()
            results[part][name] = max(results[part].get(name, 0.0), speed if number else 0.0)
    return results


def end_to_end(device: str, rounds: int, n: int) -> dict[str, float]:
    """A whole run: training, an attack, aggregation with each rule, evaluation on a test set of a sixth of the size."""
    from honestly.sim.data import Dataset as Data
    from honestly.sim.experiment import Experiment
    from honestly.sim.rounds import Federation

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n + n // 6, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, n + n // 6)
    classes = tuple(map(str, range(10)))
    data = Data("fmnist", images[:n], labels[:n], images[n:], labels[n:], (0.5,), (0.5,), classes)
    results = {}
    for rule in ("mean", "bayesian"):
        e = Experiment.of(
            {"dataset": "fmnist", "rounds": rounds + 1, "rule": rule, "attack": "random", "malicious": 0.4, "lr": 0.001}
        )
        federation = Federation(e, data=data, device=device)
        laps, beginning, seen = [], 0.0, 0
        for record in federation.rounds():
            if record.numbers["round"] == 1:  # graphs are captured only once
                beginning = time.perf_counter()
                continue
            laps.append(record.seconds)
            seen += record.images
        results[f"{rule}: images/s"] = seen / (time.perf_counter() - beginning)
        for name in laps[0]:
            results[f"{rule}: {name} ms a round"] = 1e3 * float(np.mean([lap[name] for lap in laps]))
    return results


def together(images: int, runs: int, repeats: int = 6) -> dict[str, float]:
    """Several LeNet-5 federations in parallel on a GPU, each on its own stream; also without the tensor cores."""
    from unittest import mock

    from honestly.sim.train import tensorcores
    from honestly.sim.train.batched import ClientChunk
    from honestly.sim.train.replay import Graph
    from honestly.sim.train.schedule import Stack

    model, store = build("lenet5", (1, 32, 32), 10, 0), pixels(images, (1, 32, 32), "cuda")
    stack, theta = Stack.of(schedules(images, 1, CLIENTS), BATCH), Model.of(model, "cuda").theta
    results = {}
    for name, usable in ((", fused multiply-adds alone", False), ("", True)):
        with mock.patch.object(tensorcores, "available", lambda device, usable=usable: usable):
            streams = [torch.cuda.Stream() for _ in range(runs)]
            graphs = [Graph(ClientChunk(model, CLIENTS, store, SGD_PAPER, BATCH)) for _ in range(runs)]
            for number in range(repeats + 2):  # the first two capture and warm up
                if number == 2:
                    sync("cuda")
                    beginning = time.perf_counter()
                for stream, graph in zip(streams, graphs, strict=True):
                    with torch.cuda.stream(stream):
                        graph.run(theta, stack)
            sync("cuda")
            results[f"{runs} runs side by side{name}"] = repeats * runs * images / (time.perf_counter() - beginning)
    return results


def residual(device: str, images: int) -> dict[str, float]:
    """Residual networks of all clients at once, with our own kernels."""
    results: dict[str, float] = {}
    for name in ("resnet18_half", "resnet18"):
        model = build(name, (3, 32, 32), 10, 0)
        trainer = ResidualTrainer(model, pixels(images, (3, 32, 32), device), SGD_PAPER, BATCH)
        results[f"{name} bf16, own kernels"] = best(training(trainer, model, schedules(images, 2), device), repeats=2)
    print(*(f"{key}: {value:,.0f} images/s" for key, value in results.items()), flush=True)
    return results


def resnet(device: str, images: int) -> dict[str, float]:
    """Residual networks with PyTorch, a few clients in parallel."""
    results = {}
    for name in ("resnet18_half", "resnet18"):
        model = build(name, (3, 32, 32), 10, 0)
        store = pixels(images, (3, 32, 32), device)
        for lanes, compiled in ((4, True), (10, True), (20, True)):
            speed = Speed(bf16=True, compile=compiled, lanes=lanes)
            trainer = SequentialTrainer(model, store, SGD_PAPER, BATCH, speed=speed)
            beginning = time.perf_counter()
            key = f"{name} bf16, {lanes} lanes{', compiled' if compiled else ''}"
            results[key] = best(training(trainer, model, schedules(images, 1), device), repeats=1)
            print(f"{key}: {results[key]:,.0f} images/s ({time.perf_counter() - beginning:.0f} s)", flush=True)
            del trainer
            torch.cuda.empty_cache()
    return results


def profile(device: str) -> str:
    """Where a training step of 20 LeNet-5 clients spends its time, kernel by kernel, outside the CUDA graph."""
    from torch.profiler import ProfilerActivity

    from honestly.sim.train.batched import ClientChunk
    from honestly.sim.train.schedule import Stack

    model = build("lenet5", (1, 32, 32), 10, 0)
    chunk = ClientChunk(model, CLIENTS, pixels(6_000, (1, 32, 32), device), SGD_PAPER, BATCH)
    stack = Stack.of(schedules(6_000, 1), BATCH)
    samples = torch.from_numpy(stack.samples[:, 0]).to(device)
    weights = torch.from_numpy(stack.weights[:, 0]).to(device)
    for _ in range(5):
        chunk.step(samples, weights, None, None, None, None)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(10):
            chunk.step(samples, weights, None, None, None, None)
        sync(device)
    key = "self_cpu_time_total" if device == "cpu" else "self_cuda_time_total"
    events = profiler.key_averages(group_by_input_shape=True)
    lines = []
    for e in sorted(events, key=lambda e: -getattr(e, key.replace("cuda", "device")))[:40]:
        total = getattr(e, key.replace("cuda", "device"))
        lines.append(f"{total / 10:9.1f} us/step {e.count // 10:4d}x {e.key[:60]} {str(e.input_shapes)[:110]}")
    print("\n".join(lines), flush=True)
    return "printed"


def measure(part: str, args: argparse.Namespace, images: int, epochs: int) -> object:
    """One part of the benchmark."""
    device = args.device
    if part == "profile":
        return profile(device)
    if part == "check":
        return check(device)
    if part == "cpu":
        return side_by_side(images, epochs)
    if part == "plain":
        return {f"{w} workers": best(plain(min(images, 6_000), device, w)) for w in (0, 2)}
    if part == "lenet":
        ways = {"fused": None, "plain ops": False} if device != "cpu" else {"all": None}
        return {name: best(lenet(device, CLIENTS, images, epochs, way)) for name, way in ways.items()}
    if part == "many":
        return {f"{k} clients": best(lenet(device, k, images, epochs)) for k in (50, 200)}
    if part == "together":
        return together(images, 8)
    if part == "endtoend":
        return end_to_end(device, args.rounds, images)
    if part == "residual":
        return residual(device, 50_000)
    if part == "resnet":
        return resnet(device, 50_000)
    raise ValueError(f"unknown part {part}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parts", help="check, cpu, plain, lenet, many, together, endtoend, residual, resnet, profile")
    parser.add_argument("--images", type=int, default=0, help="training images (default: 6,000 on a CPU, 60,000)")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="JSON", help="print a page of results without measuring"
    )
    args = parser.parse_args()
    if args.table:
        table(args.table)
        return
    cpu = args.device == "cpu"
    images, epochs = args.images or (6_000 if cpu else 60_000), args.epochs or (1 if cpu else 10)
    machine = torch.cuda.get_device_name() if not cpu else processor()
    results: dict[str, object] = {
        "machine": machine, "threads": torch.get_num_threads(), "torch": torch.__version__, "images": images,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }  # fmt: skip
    for part in (args.parts or ("check,cpu" if cpu else "check,lenet")).split(","):
        beginning = time.perf_counter()
        try:
            results[part] = measure(part, args, images, epochs)
        except Exception as error:  # continue with the other parts
            results[part] = f"failed: {type(error).__name__}: {error}"
        if part == "cpu" and isinstance(results[part], dict):
            results |= results[part]
        print(f"{part} ({time.perf_counter() - beginning:.0f} s): {json.dumps(results[part], indent=1)}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1))
    if isinstance(results.get("plain"), dict) and isinstance(results.get("lenet"), dict):
        plain_loop = max(results["plain"].values())
        results["ratio"] = {name: speed / plain_loop for name, speed in results["lenet"].items()}
        print(f"all clients at once / plain loop: {json.dumps(results['ratio'])}")
        if args.out:
            args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
