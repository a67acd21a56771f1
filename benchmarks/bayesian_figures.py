"""Draw the figures of docs/explanation/bayesian.md: failures of the published rule, and the shipped rule beside it.

failures.png measures three failures; believed.png shows which clients each rule believes, in the plane of the attack.

    python benchmarks/bayesian_figures.py [--recorded FILE.npz]

FILE has recorded updates, "honest" (20, d) and "label_flip" (9, d), as written by `honestly simulate --record`. Without
it, the third panel shows two random clusters like those that label flip produces.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from honestly.rules.bayesian import Bayesian
from honestly.rules.geometric_median import GeometricMedian
from honestly.rules.mean import Mean
from honestly.rules.rule import GramGeometry

K, M, d = 20, 8, 2000
SHIPPED, PAPER, RIVAL = "#1b6ca8", "#d95f02", "0.55"


def noise(rng, n):
    return rng.normal(size=(n, d)) / np.sqrt(d)


def weights(rule, X):
    C = X - np.median(X, axis=0)
    return rule.mix(GramGeometry(C @ C.T)).matrix[0]


def kappa(rule, X):
    H = X[: K - M]
    return np.sum((weights(rule, X) @ X - H.mean(0)) ** 2) / np.mean(np.sum((H - H.mean(0)) ** 2, axis=1))


def collapse(axis, rng):
    X, direction = noise(rng, K), noise(rng, 1)
    distances = np.geomspace(0.1, 30, 60)
    rules = (
        ("published, scale-free", Bayesian(variant="paper"), PAPER),
        ("geometric median", GeometricMedian(), RIVAL),
        ("shipped", Bayesian(), SHIPPED),
    )
    for label, rule, colour in rules:
        results = []
        for t in distances:
            X[K - M :] = X[: K - M].mean(0) + t * direction
            results.append(kappa(rule, X))
        axis.plot(distances, results, color=colour, label=label)
    axis.set(xscale="log", yscale="log", ylim=(1e-5, 20), xlabel="distance of 8 copies, honest spreads", ylabel="kappa")
    axis.set_title("collapse: 8 of 20 send the same")
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def unit(axis, rng):
    X = noise(rng, 1) + noise(rng, K)
    X[K - M :] *= -4
    units = np.geomspace(1e-4, 1e4, 60)
    rules = (
        ("published, with ln sigma²", Bayesian(variant="paper", scale_free=False), PAPER, "-"),
        ("published, scale-free", Bayesian(variant="paper"), PAPER, ":"),
        ("shipped", Bayesian(), SHIPPED, "-"),
    )
    for label, rule, colour, line in rules:
        share = [weights(rule, u * X)[K - M :].sum() for u in units]
        axis.plot(units, share, color=colour, ls=line, label=label)
    axis.axhline(M / K, color="0.8", lw=0.8, zorder=0)
    axis.set(xscale="log", ylim=(-0.02, 0.5), xlabel="unit of the updates", ylabel="weight of the 8 attackers")
    axis.set_title("the unit decides: sign flip x4")
    axis.legend(frameon=False, fontsize=8, loc="center right")


def label_flip(axis, rng, path):
    if path is None:
        X = noise(rng, K) + np.where(np.arange(K)[:, None] < K - M, 0.0, 2.0 * noise(rng, 1))
        title = "two clusters of comparable spread"
    else:
        with np.load(path) as file:
            X = np.concatenate([file["honest"][: K - M], file["label_flip"][-M:]]).astype(float)
        title = "label flip, recorded updates"
    for offset, rule, colour in ((-0.2, Bayesian(variant="paper"), PAPER), (0.2, Bayesian(), SHIPPED)):
        axis.bar(np.arange(K) + offset, weights(rule, X) * (K - M), width=0.4, color=colour)
    axis.axvspan(K - M - 0.5, K - 0.5, color="0.93", zorder=0)
    axis.set(xlabel="client (shaded: malicious)", ylabel="weight x honest clients", xlim=(-0.6, K - 0.4))
    axis.set_title(title)


def scenes(rng):
    """Names, updates of which the last M are malicious, and the two directions of the plane that is drawn."""
    along, across = noise(rng, 1)[0], noise(rng, 1)[0]
    honest = along + noise(rng, K)
    flipped, copied, shifted, hidden = (honest.copy() for _ in range(4))
    flipped[K - M :] *= -1.5
    copied[K - M :] = honest[: K - M].mean(0) + 1.1 * across
    shifted[K - M :] += 2.2 * across
    hidden[K - M :] += 0.7 * across
    return (
        ("sign flip", flipped, along, across),
        ("eight copies, one spread away", copied, across, along),
        ("a second cluster (label flip)", shifted, across, along),
        ("inside the honest spread", hidden, across, along),
    )


def draw_believed(path, rng):
    rules = (("mean", Mean()), ("published", Bayesian(variant="paper")), ("shipped", Bayesian()))
    drawn = scenes(rng)
    figure, axes = plt.subplots(3, len(drawn), figsize=(12.5, 8.2), layout="constrained", sharex="col", sharey="col")
    for column, (title, X, first, second) in zip(axes.T, drawn, strict=True):
        # the part of each update within the plane; the rest is as long, and orthogonal to it
        e1 = first / np.linalg.norm(first)
        e2 = second - (second @ e1) * e1
        plane = np.stack([e1, e2 / np.linalg.norm(e2)], axis=1)
        spread = noise(rng, K)[:, :1] * np.sqrt(d) * 0.25  # keeps clients from hiding each other
        points = X @ plane + np.c_[np.zeros(K), spread[:, 0]]
        for axis, (name, rule) in zip(column, rules, strict=True):
            w = weights(rule, X)
            colours = np.where(np.arange(K) < K - M, SHIPPED, "#c0392b")
            axis.scatter(*points.T, s=12, c=colours, zorder=3)
            axis.scatter(*points.T, s=6000 * w, facecolors=colours, alpha=0.18, linewidths=0)
            axis.scatter(*(w @ X @ plane), marker="x", s=70, c="k", zorder=4)
            axis.scatter(*(X[: K - M].mean(0) @ plane), marker="+", s=110, c="0.3", zorder=4)
            axis.set(xticks=[], yticks=[])
            axis.margins(0.18)
            if axis is column[0]:
                axis.set_title(title, fontsize=11)
            if title == drawn[0][0]:
                axis.set_ylabel(name, fontsize=12)
    figure.savefig(path, dpi=80)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.5), layout="constrained")
    collapse(axes[0], rng)
    unit(axes[1], rng)
    label_flip(axes[2], rng, args.recorded)
    figures = Path(__file__).parents[1] / "docs" / "figures"
    figure.savefig(figures / "failures.png", dpi=100)
    draw_believed(figures / "believed.png", np.random.default_rng(1))


if __name__ == "__main__":
    main()
