"""Data-parallel training with three faulty ranks of eight: plain all-reduce, clipping, and robust all-reduce.

torchrun --nproc-per-node 8 examples/torch_ddp.py        # or: python examples/torch_ddp.py, which runs torchrun

Rank 5 has a faulty chip that occasionally flips a bit of its gradient, rank 6 sends NaN in the second half, and rank 7
lies: it sends five times the opposite of its gradient. Runs on a CPU in half a minute.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from honestly.sim.data import load
from honestly.torch import RobustAverager, ddp_hook

STEPS, BROKEN, NAN, LIAR = 120, 5, 6, 7


class Faults:
    """What goes wrong on this rank before its gradient is sent."""

    def __init__(self, rank: int) -> None:
        self.rank, self.step = rank, 0
        self.random = torch.Generator().manual_seed(1)

    def corrupt(self, gradient: torch.Tensor) -> None:
        self.step += 1
        if self.rank == LIAR:
            gradient.mul_(-5.0)
        elif self.rank == NAN and self.step > STEPS // 2:
            gradient[0] = torch.nan
        elif self.rank == BROKEN and torch.rand(1, generator=self.random) < 0.1:  # an exponent bit of one value
            at = torch.randint(len(gradient), (1,), generator=self.random)
            gradient[at] = (gradient[at].view(torch.int32) ^ (1 << 29)).view(torch.float32)


def clipped(group: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Clip the gradient of every rank to length 1 before the mean."""
    gradient = bucket.buffer()
    gradient.mul_(1.0 / gradient.norm().clamp(min=1.0))
    return allreduce_hook(group, bucket)


def train(way: str, history: str | None) -> tuple[list[float], float]:
    """Return the test loss after each step, and the final accuracy."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    digits = load("digits")
    images, labels = torch.from_numpy(digits.images).float() / 255, torch.from_numpy(digits.labels)
    test, answers = torch.from_numpy(digits.test_images).float() / 255, torch.from_numpy(digits.test_labels)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    averager = RobustAverager(forgetting=0.9, history=history, model=model.module)
    hooks = {"clipping": (None, clipped), "robust": (averager, ddp_hook)}
    state, hook = hooks.get(way, (None, allreduce_hook))
    faults = Faults(rank)

    def send(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if way != "no faults":
            faults.corrupt(bucket.buffer())
        return hook(state, bucket)

    model.register_comm_hook(state, send)  # without faults: model.register_comm_hook(averager, ddp_hook)
    own, random = torch.arange(rank, len(labels), ranks), torch.Generator().manual_seed(rank)
    losses: list[float] = []
    for _ in range(STEPS):
        batch = own[torch.randint(len(own), (32,), generator=random)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(model.module(test), answers)))
        if way == "robust":
            averager.note({"loss": losses[-1]})
    if way == "robust" and rank == 0:
        averager.close()
        print("the last step:", averager.last.summary())
        print("weights:", averager.last.weights.round(2))
        print("refused:", dict(averager.last.reasons))
    return losses, float((model.module(test).argmax(1) == answers).float().mean())


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
    for way in ("no faults", "plain", "clipping", "robust"):
        curves[way], accuracy = train(way, options.history)
        if dist.get_rank() == 0:
            print(f"{way:<9} loss after {STEPS // 2} and {STEPS} steps: {curves[way][STEPS // 2 - 1]:.3g} ", end="")
            print(f"{curves[way][-1]:.3g}   accuracy: {accuracy:.3f}")
    if dist.get_rank() == 0 and options.json:
        options.json.write_text(json.dumps(curves))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
