import numpy as np
import pytest

from honestly.rules.trimmed_mean import TrimmedMean

from .clients import honest, value


def naive(X, g):
    out = []
    for column in X.T:
        kept = sorted(column)[g : len(column) - g]
        out.append(sum(kept) / len(kept))
    return np.array(out)


@pytest.mark.parametrize(
    ("trim", "K", "g"), [(0.2, 20, 4), (0.45, 20, 9), (0.49, 20, 9), (0, 5, 0), (0.29, 100, 29), (0.4, 1, 0)]
)
def test_matches_the_loop(trim, K, g):
    X = honest(K)
    np.testing.assert_allclose(value(TrimmedMean(trim=trim), X), naive(X, g), rtol=1e-13)


def test_f_replaces_trim():
    X = honest(9)
    np.testing.assert_allclose(value(TrimmedMean(f=3), X), naive(X, 3), rtol=1e-13)


def test_extremes_do_not_cancel_the_rest():
    X = np.array([[1.0], [2.0], [3.0], [1e30], [-1e30]])
    assert value(TrimmedMean(trim=0.2), X)[0] == 2.0


def test_names_the_bound():
    with pytest.raises(ValueError, match=r"TrimmedMean\(trim=0.2, f=5\) needs at least 2f\+1 = 11 clients, got 10"):
        TrimmedMean(f=5).check(10)
