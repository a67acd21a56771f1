"""DiLoCo with a bad replica: eight replicas average their models every ten steps, and one sends the opposite.

torchrun --nproc-per-node 8 examples/diloco.py        # or: python examples/diloco.py, which runs torchrun

With the mean, one bad replica of eight makes the training diverge; the Bayesian rule recognises and excludes it. Runs
on a CPU in half a minute.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from honestly.sim.data import load
from honestly.torch import RobustAverager, RobustOuterOptimizer

MEETINGS, EVERY, BAD = 15, 10, 7


def train(rule: str, history: str | None) -> tuple[list[float], float]:
    """Return the test loss of the global model after each averaging step, and its final accuracy."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    digits = load("digits")
    images, labels = torch.from_numpy(digits.images).float() / 255, torch.from_numpy(digits.labels)
    test, answers = torch.from_numpy(digits.test_images).float() / 255, torch.from_numpy(digits.test_labels)
    own, random = torch.arange(rank, len(labels), ranks), torch.Generator().manual_seed(rank)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    inner = torch.optim.AdamW(model.parameters(), lr=0.003)
    averager = RobustAverager(rule=rule, forgetting=0.9 if rule == "bayesian" else 0.0, history=history)
    outer = RobustOuterOptimizer(model, every=EVERY, averager=averager, inner=inner)
    losses: list[float] = []
    for step in range(MEETINGS * EVERY):
        batch = own[torch.randint(len(own), (32,), generator=random)]
        inner.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        inner.step()
        if rank == BAD and step % EVERY == EVERY - 1:
            lie(model, outer)
        if outer.step() is not None:
            with torch.no_grad():
                losses.append(float(nn.functional.cross_entropy(model(test), answers)))
            averager.note({"loss": losses[-1]})
    if rule == "bayesian" and rank == 0:
        averager.close()
        print("the last meeting:", averager.last.summary())
        print("weights:", averager.last.weights.round(2))
    return losses, float((model(test).argmax(1) == answers).float().mean())


@torch.no_grad()
def lie(model: nn.Module, outer: RobustOuterOptimizer) -> None:
    """Move from the last common model in the opposite direction, ten times as far."""
    common = [parameter for group in outer.optimizer.param_groups for parameter in group["params"]]
    for mine, met in zip(model.parameters(), common, strict=True):
        mine.copy_(met - 10 * (mine - met))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the curves to this file")
    parser.add_argument("--history", help="a folder for `honestly report` and `honestly watch`")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8", *sys.argv]
        sys.exit(subprocess.call(command))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    curves: dict[str, list[float]] = {}
    for rule in ("mean", "bayesian"):
        curves[rule], accuracy = train(rule, options.history if rule == "bayesian" else None)
        if dist.get_rank() == 0:
            text = [f"{loss:.3g}" if math.isfinite(loss) else "diverged" for loss in curves[rule][::4]]
            print(f"{rule:<9} loss: {' '.join(text)}   accuracy: {accuracy:.3f}")
    if dist.get_rank() == 0 and options.json:
        options.json.write_text(json.dumps(curves))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
