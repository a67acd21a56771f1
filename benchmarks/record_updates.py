"""Record the updates of 20 LeNet-5 clients for benchmarks/bayesian_study.py, using only torch.

    python benchmarks/record_updates.py --data FOLDER --out recorded [--all]

FOLDER has MNIST/raw and FashionMNIST/raw as usual. Each file holds "honest" (20, 61706), and what clients 11..19 send
with labels y + 1 ("label_flip") or with the paper's trigger ("backdoor"). By default, records the three populations of
bayesian.md; with --all, all 36: alpha 0.1, 0.5, 1.0; lr 0.01, 0.03; rounds 1, 4, 10. `honestly simulate --record`
writes such files, too.
"""

import argparse
import gzip
import itertools
from pathlib import Path

import numpy as np
import torch
from torch import nn

K, LIARS = 20, 9
NORMALISE = {"MNIST": (0.1307, 0.1307), "FashionMNIST": (0.5, 0.5)}
SHOWN = (("FashionMNIST", 1.0, 0.03, 4), ("MNIST", 0.5, 0.01, 10), ("MNIST", 1.0, 0.01, 1))


def read(path):
    data = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def lenet():
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def partition(y, alpha, rng):
    """Dirichlet by class, balanced to equal client sizes."""
    P = rng.dirichlet([alpha] * K, 10) + 1e-12
    for _ in range(1000):
        P /= P.sum(0, keepdims=True) * K / 10
        P /= P.sum(1, keepdims=True)
    parts = [[] for _ in range(K)]
    for c in range(10):
        i = rng.permutation(np.flatnonzero(y == c))
        for k, share in enumerate(np.split(i, np.round(np.cumsum(P[c]) * len(i)).astype(int)[:-1])):
            parts[k].append(share)
    return [np.concatenate(p) for p in parts]


def train(model, w, x, y, lr, epochs, generator):
    torch.nn.utils.vector_to_parameters(w.clone(), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
    loss = nn.CrossEntropyLoss()
    for _ in range(epochs):
        for i in torch.randperm(len(y), generator=generator).split(128):
            optimizer.zero_grad()
            loss(model(x[i]), y[i]).backward()
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def trigger(x):
    x = x.copy()
    for row in (2, 4):
        x[:, row, 2:9] = 255
        x[:, row, 10:17] = 255
    return x


def record(data, out, name, alpha, lr, rounds):
    seed = int(100 * alpha) + int(1000 * lr) + (name == "MNIST")
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x = np.pad(read(data / name / "raw" / "train-images-idx3-ubyte.gz"), ((0, 0), (2, 2), (2, 2)))
    y = read(data / name / "raw" / "train-labels-idx1-ubyte.gz").astype(np.int64)
    mean, deviation = NORMALISE[name]

    def images(a):
        return (torch.from_numpy(a.astype(np.float32))[:, None] / 255 - mean) / deviation

    parts = partition(y, alpha, rng)
    X, Y = [images(x[p]) for p in parts], [torch.from_numpy(y[p]) for p in parts]
    model = lenet()
    w = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    for t in range(1, 11 if len(rounds) > 1 else rounds[0] + 1):
        recorded = t in (1, 4, 10)  # also in rounds that were not requested: files must be the same as with --all
        epochs = 2 if recorded else 1
        U = torch.stack([train(model, w, X[k], Y[k], lr, epochs, generator) - w for k in range(K)])
        if recorded:
            flipped, poisoned = [], []
            for k in range(K - LIARS, K):
                flipped.append(train(model, w, X[k], (Y[k] + 1) % 10, lr, 2, generator) - w)
                zeros = parts[k][y[parts[k]] == 0]
                if len(zeros):
                    xb, yb = images(trigger(x[zeros])), torch.full((len(zeros),), 8)
                    v = train(model, w, xb, yb, lr, 1, generator)
                    v = train(model, v, torch.cat([X[k], xb]), torch.cat([Y[k], yb]), lr, 1, generator)
                else:
                    v = train(model, w, X[k], Y[k], lr, 2, generator)
                poisoned.append(v - w)
            if t in rounds:
                arrays = {"label_flip": torch.stack(flipped).numpy(), "backdoor": torch.stack(poisoned).numpy()}
                file = out / f"{name}_a{alpha}_lr{lr}_s{seed}_r{t}.npz"
                np.savez(file, honest=U.numpy(), reference=w.numpy(), **arrays)
                print(file, flush=True)
        w = w + U.mean(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("recorded"))
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the same bits on every machine with the same torch
    if args.all:
        for alpha, lr, name in itertools.product((0.5, 0.1, 1.0), (0.01, 0.03), ("FashionMNIST", "MNIST")):
            record(args.data, args.out, name, alpha, lr, (1, 4, 10))
    else:
        for name, alpha, lr, t in SHOWN:
            record(args.data, args.out, name, alpha, lr, (t,))


if __name__ == "__main__":
    main()
