import numpy as np
import pytest

from honestly.rules.dnc import DnC
from honestly.rules.rule import GramGeometry

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


@pytest.mark.parametrize(("f", "share", "dropped"), [(20, 0.55, 11), (20, 0.56, 12), (50, 1.1, 55), (7, 0.5, 4)])
def test_a_share_that_is_a_whole_number_of_clients_drops_as_many(f, share, dropped):
    X = honest(2 * f + 1, 30)
    weights = DnC(f=f, share=share).mix(GramGeometry(X @ X.T)).matrix[0]
    assert np.count_nonzero(weights) == len(X) - dropped


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
