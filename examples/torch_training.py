"""A federation in plain PyTorch: your own training loop, with one line for robust averaging.

python examples/torch_training.py
"""

import copy

import numpy as np
import torch
from torch import nn

import honestly as hn
from honestly.sim.data import load

CLIENTS, LIARS, ROUNDS = 10, 4, 6


def local_training(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Train a copy of the global model on a client's own images."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for batch in torch.randperm(len(labels)).split(24):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.state_dict()


def lie(sent: dict[str, torch.Tensor], old: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Send four times the opposite of what was learned."""
    return {name: old[name] - 4 * (sent[name] - old[name]) for name in sent}


def federation(rule: hn.Rule) -> list[float]:
    """Accuracy after each round."""
    torch.manual_seed(0)
    digits = load("digits")
    images = torch.from_numpy(digits.images).float() / 255
    labels = torch.from_numpy(digits.labels)
    test = torch.from_numpy(digits.test_images).float() / 255
    parts = torch.randperm(len(labels)).chunk(CLIENTS)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    results = []
    for _ in range(ROUNDS):
        old = copy.deepcopy(model.state_dict())
        sent = [local_training(model, images[part], labels[part]) for part in parts]
        sent[-LIARS:] = [lie(state, old) for state in sent[-LIARS:]]

        out = hn.aggregate(sent, rule=rule, reference=old)  # was: the mean of the state dicts
        model.load_state_dict(out.value)

        results.append(float((model(test).argmax(1).numpy() == digits.test_labels).mean()))
    if out.honesty is not None:
        print("honesty in the last round:", np.round(out.honesty, 1))
    return results


def main() -> None:
    torch.set_num_threads(1)  # more threads do not help such a small model
    for rule in (hn.Mean(), hn.Bayesian()):
        accuracy = federation(rule)
        print(f"{rule.name:9} accuracy by round:", " ".join(f"{a:.2f}" for a in accuracy))


if __name__ == "__main__":
    main()
