import numpy as np
import pytest

from honestly.rules.caf import CAF

from .clients import geometry, honest, value


def naive(X, f):
    K = len(X)
    c = np.ones(K)
    best, smallest = X.mean(axis=0), np.inf
    while True:
        mu = sum(c[k] * X[k] for k in range(K)) / c.sum()
        covariance = sum(c[k] * np.outer(X[k] - mu, X[k] - mu) for k in range(K)) / c.sum()
        values, vectors = np.linalg.eigh(covariance)
        if values[-1] < smallest:
            best, smallest = mu, values[-1]
        t = np.array([((X[k] - mu) @ vectors[:, -1]) ** 2 if c[k] > 0 else 0.0 for k in range(K)])
        c = c * (1 - t / t.max())
        if c.sum() <= K - 2 * f:
            return best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "f"), [(3, 1), (8, 0), (8, 3), (20, 9)])
@pytest.mark.parametrize("d", [1, 7, 40])
def test_matches_the_loop(K, f, seed, d):
    X = honest(K, d, seed)
    np.testing.assert_allclose(value(CAF(f=f), X), naive(X, f), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("K", [3, 20, 61])
def test_always_stops(K):
    """Every step removes one more client, so there are at most 2f + 1, even where other implementations never stop."""
    f = (K - 1) // 2
    for X in (
        honest(K),
        np.zeros((K, 3)),
        np.repeat(np.eye(K)[:1], K, axis=0),
        np.diag(10.0 ** np.arange(K)[:K] % 300),
    ):
        mix = CAF(f=f).mix(geometry(X))
        assert mix.steps <= 2 * f + 1
        assert np.isfinite(mix.matrix).all()


def test_a_removed_client_has_no_influence():
    X = honest(20)
    X[0] = 1e9
    mix = CAF(f=4).mix(geometry(X))
    assert mix.matrix[0, 0] == 0.0
