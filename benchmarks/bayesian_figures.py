"""Draw docs/figures/failures.png: three failures of the published rule, and what the shipped one does.

    python benchmarks/bayesian_figures.py [--recorded FILE.npz]

FILE has recorded updates, "honest" (20, d) and "label_flip" (9, d), as `honestly simulate --record` writes them;
without it the third panel shows the two clusters that label flip makes of updates, drawn at random.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from honestly.rules.base import GramGeometry
from honestly.rules.bayesian import Bayesian
from honestly.rules.geometric_median import GeometricMedian

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
        found = []
        for t in distances:
            X[K - M :] = X[: K - M].mean(0) + t * direction
            found.append(kappa(rule, X))
        axis.plot(distances, found, color=colour, label=label)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.5), layout="constrained")
    collapse(axes[0], rng)
    unit(axes[1], rng)
    label_flip(axes[2], rng, args.recorded)
    figure.savefig(Path(__file__).parents[1] / "docs" / "figures" / "failures.png", dpi=100)


if __name__ == "__main__":
    main()
