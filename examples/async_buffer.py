"""An asynchronous federation: clients answer when they are ready, slow clients use an old model, and some lie.

python examples/async_buffer.py

The server is the few lines around `hn.Buffer`. The clients are simulated: each trains on the model that it was given
and answers after its own delay. Halfway through, the server is stopped and restarted from its files.
"""

import copy
import heapq
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import honestly as hn
from honestly.sim.data import load

CLIENTS, LIARS, SIZE, VERSIONS = 20, 4, 10, 24


class Server:
    """The server's model and buffer; everything that a restart needs is in its folder."""

    def __init__(self, model: dict[str, torch.Tensor], rule: hn.Rule, folder: Path) -> None:
        self.saved, self.model, version = folder / "model.safetensors", model, 0
        if self.saved.exists():
            self.model = load_file(self.saved)
            with safe_open(self.saved, "pt") as file:
                version = int(file.metadata()["version"])
        self.buffer = hn.Buffer(
            SIZE, rule, like=model, folder=folder / "buffer", history=folder / "history", version=version
        )
        self.sent = {self.buffer.version: self.model}  # the models from which clients that are still training started

    def model_for_a_client(self) -> tuple[int, dict[str, torch.Tensor]]:
        return self.buffer.version, self.model

    def receive(self, client: str, model: dict[str, torch.Tensor], version: int) -> hn.Aggregate | None:
        if version not in self.sent:  # from before a restart: without its base, a model would pass for a difference
            self.buffer.refuse(client, f"started from version {version}, whose model is gone")
            return None
        out = self.buffer.add(client, model, version=version, base=self.sent[version])
        if out is not None:
            self.model = {name: old + torch.from_numpy(out.value[name]) for name, old in self.model.items()}
            new = self.saved.with_suffix(".new")  # model and version are one file, so a killed server has both or none
            save_file(self.model, new, metadata={"version": str(self.buffer.version)})
            new.replace(self.saved)
            self.sent[self.buffer.version] = self.model
        return out


def local_training(net: nn.Module, start: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> dict:
    net.load_state_dict(start)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for batch in torch.randperm(len(labels)).split(24):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    return copy.deepcopy(net.state_dict())


def federation(rule: hn.Rule, folder: Path) -> tuple[float, list[int], Counter]:
    """The final accuracy, the staleness of all averaged updates, and how often each client was accused."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    digits = load("digits")
    images, labels = torch.from_numpy(digits.images).float() / 255, torch.from_numpy(digits.labels)
    parts = torch.randperm(len(labels)).chunk(CLIENTS)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    server = Server(copy.deepcopy(net.state_dict()), rule, folder)
    pace = rng.lognormal(0, 0.7, CLIENTS)  # some clients are slow
    ready = [(float(rng.exponential(pace[k])), k, *server.model_for_a_client()) for k in range(CLIENTS)]
    heapq.heapify(ready)
    late, accused, restarted = [], Counter(), False
    while server.buffer.version < VERSIONS:
        now, k, version, start = heapq.heappop(ready)
        model = local_training(net, start, images[parts[k]], labels[parts[k]])
        if k >= CLIENTS - LIARS:  # four times the opposite of what was learned
            model = {name: start[name] - 4 * (model[name] - start[name]) for name in model}
        out = server.receive(f"site-{k}", model, version)
        if out is not None:
            late += out.diagnostics["staleness"].tolist()
            accused.update(out.accused)
        heapq.heappush(ready, (now + float(rng.exponential(pace[k])), k, *server.model_for_a_client()))
        if not restarted and server.buffer.version == VERSIONS // 2 and len(server.buffer) == SIZE // 2:
            sent = server.sent
            del server
            server = Server(copy.deepcopy(net.state_dict()), rule, folder)
            server.sent |= sent
            restarted = True
            print(
                f"{rule.name}: restarted at version {server.buffer.version} with {len(server.buffer)} updates waiting"
            )
    net.load_state_dict(server.model)
    test = torch.from_numpy(digits.test_images).float() / 255
    accuracy = float((net(test).argmax(1).numpy() == digits.test_labels).mean())
    return accuracy, late, accused


def main() -> None:
    torch.set_num_threads(1)  # more threads do not help such a small model
    for rule in (hn.Mean(), hn.Bayesian()):
        with tempfile.TemporaryDirectory() as folder:
            accuracy, late, accused = federation(rule, Path(folder))
        share = np.mean(np.array(late) > 0)
        print(f"{rule.name}: accuracy {accuracy:.2f}; {share:.0%} of the updates were stale, the oldest by {max(late)}")
        if accused:
            print("accused:", ", ".join(f"{name} in {times} averages" for name, times in accused.most_common(LIARS)))


if __name__ == "__main__":
    main()
