import numpy as np
import pytest

from honestly.rules.geometric_median import GeometricMedian
from honestly.rules.rodiloco import RoDiLoCo
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


@pytest.mark.parametrize("liars", [3, 9])
@pytest.mark.parametrize("rule", [SmoothedGeometricMedian(), RoDiLoCo()])
def test_liars_around_the_mean_do_not_hold_the_start(rule, liars):
    """The last liar moves the mean to where the others wait, nearer to it than honest clients are."""
    K, far = 20, 1e12
    X = honest(K)
    X[:liars] = 0.0
    X[: liars - 2, 0], X[liars - 2, 0] = far / 5, 2 * far
    X[liars - 1, 0] = K * far - X[: liars - 1, 0].sum()
    assert np.linalg.norm(value(rule, X) - X[liars:].mean(axis=0)) < 20.0
