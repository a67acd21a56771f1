import numpy as np
import pytest

from honestly.rules.dnc import DnC

from .clients import honest, value


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "f", "share"), [(1, 0, 1.0), (5, 2, 1.0), (20, 4, 1.5), (20, 9, 1.0), (20, 4, 0.0)])
def test_matches_the_singular_vector(K, f, share, seed):
    X = honest(K, 30, seed)
    C = X - X.mean(axis=0)
    v = np.linalg.svd(C)[2][0]
    keep = K - int(np.ceil(share * f))
    kept = sorted(range(K), key=lambda k: float(C[k] @ v) ** 2)[:keep]
    np.testing.assert_allclose(value(DnC(f=f, share=share), X), sum(X[k] for k in kept) / keep, rtol=1e-9)


def test_attackers_of_different_size_hide_each_other():
    """A known weakness of the published rule: it uses one direction, which the largest attacker dominates."""
    X = honest(20, 30)
    X[18, 0], X[19, 1] = 1e12, 1e6
    assert np.linalg.norm(value(DnC(f=2), X)) > 1e4


def test_colluders_are_dropped():
    X = honest(20, 30)
    X[12:] = X[:12].mean(axis=0) + 3
    weights = value(DnC(f=8), X)
    np.testing.assert_allclose(weights, X[:12].mean(axis=0))
