import numpy as np
import pytest

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
