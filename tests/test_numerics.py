"""Distances stay accurate where a plain float32 Gram matrix is wrong by orders of magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from honestly.engine.geometry import measure_grams
from honestly.engine.passes import passes_over
from honestly.engine.screening import Screen
from honestly.rules.rule import squared_distances
from honestly.sources import open_source


def distances(X: np.ndarray, reference: np.ndarray | None = None) -> tuple[np.ndarray, list[int]]:
    source = open_source(X, reference=reference)
    screen = Screen(source, passes_over(source))
    return squared_distances(measure_grams(screen).gram), screen.usable


def worst_error(X: np.ndarray, honest: int, reference: np.ndarray | None = None) -> float:
    """Largest relative error of the distances among the first `honest` clients."""
    found, usable = distances(X, reference)
    kept = [j for j, k in enumerate(usable) if k < honest]
    assert len(kept) == honest
    exact = X[:honest].astype(np.float64)
    true = np.stack([((exact - row) ** 2).sum(axis=1) for row in exact])
    apart = true > 0
    return float(np.max(np.abs(found[np.ix_(kept, kept)] - true)[apart] / true[apart]))


def weights_with_small_updates(K: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (1e3 * rng.normal(size=d) + 1e-4 * rng.normal(size=(K, d))).astype(np.float32)


@pytest.mark.parametrize("d", [50, 3000, 200_000])
@pytest.mark.parametrize("liar", [None, 1e12, 1e30])
def test_large_weights_and_small_updates_without_reference(d: int, liar: float | None) -> None:
    X = weights_with_small_updates(12, d)
    if liar is not None:
        X[11] = liar
    assert worst_error(X, 11) < 1e-4


def test_reference_far_from_the_clients_is_noticed() -> None:
    X = weights_with_small_updates(12, 3000)
    assert worst_error(X, 12, reference=np.zeros(3000, np.float32)) < 1e-4
    assert worst_error(X, 12, reference=X.mean(0) + np.float32(1e-4)) < 1e-4


@pytest.mark.parametrize("K", [2, 3, 20, 64, 300])
def test_any_number_of_clients(K: int) -> None:
    assert worst_error(weights_with_small_updates(K, 2000, seed=K), K) < 1e-4


def test_identical_clients_have_distance_zero() -> None:
    x = np.random.default_rng(0).normal(size=70_000).astype(np.float32)
    found, _ = distances(np.stack([x] * 15))
    assert (found == 0).all()
    found, _ = distances(np.stack([x] * 15), reference=np.zeros_like(x))
    assert (found == 0).all()


def test_distances_in_two_distant_groups() -> None:
    """Ten clients at A and ten at B, far apart: distances inside both groups must be right."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 5000)).astype(np.float32)
    X[10:] += 1e4
    found, _ = distances(X)
    exact = X.astype(np.float64)
    true = ((exact[0] - exact[1]) ** 2).sum()
    assert abs(found[0, 1] - true) / true < 1e-2
