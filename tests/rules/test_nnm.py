import numpy as np
import pytest

import honestly as hn
from honestly.rules.nnm import NNM

from .clients import geometry, honest, mixtures


def naive(X, f):
    out = []
    for x in X:
        nearest = sorted(X, key=lambda y: float(np.sum((x - y) ** 2)))[: len(X) - f]
        out.append(sum(nearest) / len(nearest))
    return np.array(out)


@pytest.mark.parametrize(("K", "f"), [(1, 0), (5, 2), (20, 4), (20, 9)])
def test_matches_the_loop(K, f):
    X = honest(K)
    np.testing.assert_allclose(mixtures(NNM(f=f), X), naive(X, f))


def test_geometry_of_the_mixtures():
    X = honest(8)
    A = NNM(f=2).mix(geometry(X))
    np.testing.assert_allclose(
        geometry(X, reference=X[0]).mixtures(A).gram_about_reference,
        geometry(A @ X, reference=X[0]).gram_about_reference,
    )


def test_names_the_bound():
    with pytest.raises(ValueError, match=r"NNM\(f=10\) needs at least 2f\+1 = 21 clients, got 20"):
        NNM(f=10).mix(geometry(honest(20)))


@pytest.mark.parametrize("clients", range(3, 12))
def test_honesty_behind_mixers_is_a_probability(clients):
    """The mean of ones by their shares is 1 + 2e-16 for 6 and 7 clients."""
    out = hn.aggregate(np.zeros((clients, 4)), pre=[NNM(f=0)])
    assert out.honesty.max() <= 1.0
