import numpy as np
import pytest

from honestly.rules.meamed import Meamed

from .clients import geometry, honest, value


def naive(X, f):
    out = []
    for column in X.T:
        median = np.median(column)
        nearest = sorted(column, key=lambda v: abs(v - median))[: len(column) - f]
        out.append(sum(nearest) / len(nearest))
    return np.array(out)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "f"), [(1, 0), (3, 1), (8, 3), (20, 9)])
def test_matches_the_loop(K, f, seed):
    X = honest(K, 40, seed)
    np.testing.assert_allclose(value(Meamed(f=f), X), naive(X, f), rtol=1e-10)


def test_an_outlier_within_the_window_does_not_cancel_the_rest():
    X = np.array([[1.0], [2.0], [3.0], [4.0], [1e18]])
    assert value(Meamed(f=1), X)[0] == 2.5


def test_names_the_bound():
    with pytest.raises(ValueError, match=r"Meamed\(f=10\) needs at least 2f\+1 = 21 clients, got 20"):
        Meamed(f=10).mix(geometry(honest(20)))
