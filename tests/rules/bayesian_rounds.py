"""Rounds under attack for the tests of the Bayesian rule, and how wrong its answer is."""

from __future__ import annotations

import numpy as np

from honestly.rules.bayesian import Bayesian
from honestly.rules.rule import GramGeometry

from .clients import geometry

K, d = 20, 400


def federation(M: int, attack: str, seed: int = 0, clients: int = K, spread: float = 1.0) -> np.ndarray:
    """Honest clients around a common mean, the last M of them malicious."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(clients, d)) / np.sqrt(d)
    mean = rng.normal(size=d) / np.sqrt(d)
    X = mean + noise
    bad = slice(clients - M, clients)
    direction = rng.normal(size=d) / np.sqrt(d)
    if attack == "copies":
        X[bad] = mean + spread * direction
    elif attack == "sign flip":
        X[bad] *= -spread
    elif attack == "noise":
        X[bad] = mean + spread * noise[bad]
    elif attack == "collusion with jitter":
        X[bad] = mean + spread * direction + 0.25 * noise[bad]
    elif attack == "shifted cluster":
        X[bad] += spread * direction
    else:
        assert attack == "none"
    return X


def kappa(X: np.ndarray, M: int, weights: np.ndarray) -> float:
    """|aggregate - honest mean|^2 / honest variance, without overflow for huge entries."""
    H = X[: len(X) - M]
    e = weights.copy()
    e[: len(H)] -= 1.0 / len(H)
    error = e[: len(H)] @ H + e[len(H) :] @ X[len(H) :]
    return float(error @ error / ((H - H.mean(axis=0)) ** 2).sum(axis=1).mean())


def measure(X: np.ndarray, M: int, rule: Bayesian | None = None):
    mix = (rule or Bayesian()).mix(geometry(X))
    return kappa(X, M, mix.matrix[0]), mix


def by_layer(X: np.ndarray, sizes: list[int], **more) -> GramGeometry:
    parts = np.split(X - np.median(X, axis=0), np.cumsum(sizes)[:-1], axis=1)
    return GramGeometry.of_layers(
        np.stack([P @ P.T for P in parts]), layer_sizes=np.array(sizes, dtype=np.float64), **more
    )
