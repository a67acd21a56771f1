import numpy as np
import pytest

from honestly.rules.geometric_median import GeometricMedian
from honestly.rules.smoothed_geometric_median import SmoothedGeometricMedian

from .clients import honest, value


def naive(X, nu, steps):
    h = len(X) // 2 + 1
    z = X.mean(axis=0)
    for _ in range(2):
        z = np.mean(sorted(X, key=lambda x: np.linalg.norm(x - z))[:h], axis=0)
    for _ in range(steps):
        b = [1.0 / max(nu, np.linalg.norm(x - z)) for x in X]
        z = sum(bk * x for bk, x in zip(b, X, strict=True)) / sum(b)
    return z


@pytest.mark.parametrize("nu", [1e-6, 0.5, 2.5])
@pytest.mark.parametrize(("K", "steps"), [(1, 3), (2, 1), (9, 3), (20, 7)])
def test_matches_the_loop(K, steps, nu):
    X = honest(K)
    np.testing.assert_allclose(value(SmoothedGeometricMedian(nu=nu, steps=steps), X), naive(X, nu, steps), rtol=1e-9)


def test_many_steps_are_the_geometric_median():
    X = honest(15)
    np.testing.assert_allclose(
        value(SmoothedGeometricMedian(nu=1e-12, steps=500), X), value(GeometricMedian(), X), rtol=1e-6
    )
