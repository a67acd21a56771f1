import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import RLR

from .clients import honest, value


def naive(X, origin, threshold):
    out = np.empty(X.shape[1])
    for i in range(X.shape[1]):
        u = [x[i] - origin[i] for x in X]
        votes = abs(sum(np.sign(v) for v in u))
        out[i] = origin[i] + (1 if votes >= threshold * len(X) else -1) * sum(u) / len(u)
    return out


@pytest.mark.parametrize("threshold", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("K", [1, 2, 5, 20])
def test_matches_the_loop(K, threshold):
    X = honest(K, 40, centre=0.5)
    reference = np.linspace(-1, 1, 40)
    X[:, 3] = reference[3]  # nobody moved it
    X[0, 5] = reference[5]
    expected = naive(X, reference, threshold)
    np.testing.assert_allclose(value(RLR(threshold=threshold), X, reference=reference), expected, rtol=1e-12)
    out = aggregate(X, RLR(threshold=threshold), reference=reference)
    np.testing.assert_allclose(out.value, expected, rtol=1e-9)
    without = aggregate(X, RLR(threshold=threshold))
    np.testing.assert_allclose(without.value, naive(X, np.zeros(40), threshold), rtol=1e-9)


def test_reverses_what_a_minority_wants():
    X = np.full((10, 2), 1e-3) * np.array([[1, -1]]) * np.where(np.arange(10) % 2, 1, -1)[:, None]
    X[:, 0] = 1.0  # all agree
    X[:3, 1] += 1.0  # three want more
    out = aggregate(X, RLR(threshold=0.8), reference=np.zeros(2))
    assert out.value[0] == pytest.approx(1.0)
    assert out.value[1] < 0
