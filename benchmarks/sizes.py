"""Measure what `sizes=` gains, and what liars can do with it: digits, 20 clients of unequal sizes.

python benchmarks/sizes.py [--seeds 5] [--rounds 15]        4 minutes on one core

A small network (64-32-10) is trained with NumPy. "two small": two clients have 6 images, the others about 80. "uneven":
sizes are lognormal with sigma 1. Liars claim a billion images; honest clients report their true sizes.
"""

import argparse

import numpy as np

import honestly as hn
from honestly.sim.data import load

CLIENTS, HIDDEN, EPOCHS, BATCH, STEP = 20, 32, 3, 16, 0.1
RULES = {
    "mean by claimed size (FedAvg)": (hn.Mean(sizes="trusted"), True),
    "mean by heads": (hn.Mean(), False),
    "bayesian, sizes ignored": (hn.Bayesian(), False),
    "bayesian, sizes used": (hn.Bayesian(), True),
    "bayesian(at_most=.2), sizes used": (hn.Bayesian(at_most=0.2), True),
}


def deal(kind, labels, rng):
    """Assign shuffled images to the clients, in shares of unequal size."""
    if kind == "two small":
        shares = np.array([6.0, 6.0] + [79.0] * (CLIENTS - 2))
    else:
        shares = np.exp(rng.normal(size=CLIENTS))
    sizes = np.maximum((shares / shares.sum() * len(labels)).astype(int), 2)
    order = rng.permutation(len(labels))
    ends = np.cumsum(sizes)
    return [order[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def start(rng):
    return {
        "a.weight": rng.normal(size=(64, HIDDEN)) * 0.1,
        "a.bias": np.zeros(HIDDEN),
        "b.weight": rng.normal(size=(HIDDEN, 10)) * 0.1,
        "b.bias": np.zeros(10),
    }


def forward(model, x):
    hidden = np.maximum(x @ model["a.weight"] + model["a.bias"], 0.0)
    return hidden, hidden @ model["b.weight"] + model["b.bias"]


def train(model, x, y, rng):
    model = {name: values.copy() for name, values in model.items()}
    for _ in range(EPOCHS):
        order = rng.permutation(len(y))
        for begin in range(0, len(y), BATCH):
            rows = order[begin : begin + BATCH]
            hidden, logits = forward(model, x[rows])
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(rows)), y[rows]] -= 1.0
            p /= len(rows)
            back = (p @ model["b.weight"].T) * (hidden > 0)
            model["b.weight"] -= STEP * hidden.T @ p
            model["b.bias"] -= STEP * p.sum(axis=0)
            model["a.weight"] -= STEP * x[rows].T @ back
            model["a.bias"] -= STEP * back.sum(axis=0)
    return model


def run(kind, rule, with_sizes, attack, seed, rounds):
    """Final accuracy, honest clients accused per round, and how many of those are small."""
    rng = np.random.default_rng(seed)
    data = load("digits")
    x, test = (images.reshape(len(images), -1) / 255.0 for images in (data.images, data.test_images))
    shares = deal(kind, data.labels, rng)
    sizes = np.array([len(share) for share in shares], dtype=float)
    small = sizes < 0.25 * np.median(sizes)
    liars = np.argsort(-sizes)[: {"none": 0, "one flips its update": 1, "four flip labels": 4}[attack]]
    claims = sizes.copy()
    claims[liars] = 1e9
    model, accused, accused_small = start(rng), 0, 0
    for _ in range(rounds):
        sent = []
        for k, share in enumerate(shares):
            labels = data.labels[share]
            if k in liars and attack == "four flip labels":
                labels = 9 - labels
            new = train(model, x[share], labels, rng)
            if k in liars and attack == "one flips its update":
                new = {name: model[name] - 4.0 * (new[name] - model[name]) for name in model}
            sent.append(new)
        out = hn.aggregate(sent, rule, reference=model, sizes=claims if with_sizes else None)
        model = out.value
        honest = set(out.accused) - set(liars.tolist())
        accused += len(honest)
        accused_small += sum(bool(small[k]) for k in honest)
    accuracy = float((forward(model, test)[1].argmax(axis=1) == data.test_labels).mean())
    return accuracy, accused / rounds, accused_small / rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print("| clients | attack | rule | accuracy | honest accused per round (small ones) |")
    print("| --- | --- | --- | ---: | ---: |")
    for kind in ("two small", "uneven"):
        for attack in ("none", "one flips its update", "four flip labels"):
            for name, (rule, with_sizes) in RULES.items():
                result = np.array(
                    [run(kind, rule, with_sizes, attack, seed, options.rounds) for seed in range(options.seeds)]
                )
                accuracy, accused, small = result.T
                print(
                    f"| {kind} | {attack} | {name} | {accuracy.mean():.3f} ± {accuracy.std(ddof=1):.3f} "
                    f"| {accused.mean():.2f} ({small.mean():.2f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
