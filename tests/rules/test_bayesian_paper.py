"""The published rule compared with Algorithm 1 on vectors, and its known failures, which the default rule fixes."""

from __future__ import annotations

import numpy as np
import pytest

from honestly.rules.bayesian import Bayesian

from .bayesian_rounds import K, federation, kappa
from .clients import geometry


def algorithm_1(W: np.ndarray, *, scale_free: bool, outer: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Lines 2-9 with loops over clients; the inner loop of Eq. 16 starts at pi = 0.95."""
    n = len(W)
    mean = sum(W) / n
    sigma2 = sum(np.sum((w - mean) ** 2) for w in W) / n
    pi = [1.0] * n
    for _ in range(outer):
        p = []
        for w in W:
            exponent = np.sum((w - mean) ** 2) / sigma2 + (0.0 if scale_free else np.log(2 * np.pi * sigma2))
            p.append(np.exp(-exponent / 2))
        pi = [0.95] * n
        for _ in range(100):
            total = sum(pi)
            new = [1 / (1 + (n - total) / total / pk) for pk in p]
            change = max(abs(x - y) for x, y in zip(pi, new, strict=True))
            pi = new
            if change < 1e-3:
                break
        old = mean
        mean = sum(pk * w for pk, w in zip(pi, W, strict=True)) / sum(pi)
        sigma2 = sum(pk * np.sum((w - mean) ** 2) for pk, w in zip(pi, W, strict=True)) / sum(pi)
        if np.sum((mean - old) ** 2) <= 1e-6 * sigma2:
            break
    return mean, np.array(pi)


@pytest.mark.parametrize("scale_free", [True, False])
@pytest.mark.parametrize("unit", [0.1, 1.0])
@pytest.mark.parametrize(("M", "attack", "spread"), [(0, "none", 1.0), (4, "noise", 3.0), (8, "sign flip", 4.0)])
def test_agrees_with_algorithm_1(M, attack, spread, unit, scale_free):
    X = unit * federation(M, attack, spread=spread)
    mix = Bayesian(variant="paper", scale_free=scale_free).mix(geometry(X))
    mean, pi = algorithm_1(X, scale_free=scale_free)
    np.testing.assert_allclose(mix.matrix[0] @ X, mean, atol=1e-9 * unit)
    np.testing.assert_allclose(mix.honesty, pi, atol=1e-9)


def test_it_is_not_stuck_at_the_mean():
    X = federation(4, "sign flip", spread=4.0)
    weights = Bayesian(variant="paper").mix(geometry(X)).matrix[0]
    assert weights[16:].sum() < 0.01


def test_known_failure_collapse_on_copies():
    """Eight copies at a distance of one spread capture the published rule, but not the default."""
    X = federation(8, "copies", spread=1.0)
    assert kappa(X, 8, Bayesian(variant="paper").mix(geometry(X)).matrix[0]) > 0.8
    assert kappa(X, 8, Bayesian().mix(geometry(X)).matrix[0]) < 0.02


def test_known_failure_unit():
    """With ln sigma^2 the attackers' weight depends on the unit; the default's does not."""
    X = federation(8, "sign flip", spread=4.0)
    rule = Bayesian(variant="paper", scale_free=False)
    shares = [rule.mix(geometry(unit * X)).matrix[0][12:].sum() for unit in (1.0, 1e-3)]
    assert shares[0] < 0.05 < 0.35 < shares[1]


def test_known_failure_probabilities():
    """Honest clients end with a probability near 0 in the scale-free form, although nobody attacks."""
    X = federation(0, "none")
    assert Bayesian(variant="paper").mix(geometry(X)).honesty.max() < 0.05
    assert Bayesian().mix(geometry(X)).honesty.min() > 0.99


@pytest.mark.parametrize("scale_free", [True, False])
def test_degenerate_rounds(scale_free):
    rule = Bayesian(variant="paper", scale_free=scale_free)
    for X in (np.ones((1, 3)), np.ones((5, 3)), np.zeros((2, 3)), federation(0, "none", clients=2)):
        mix = rule.mix(geometry(X))
        np.testing.assert_allclose(mix.matrix.sum(), 1.0)
        assert np.isfinite(mix.matrix).all()
    far = federation(0, "none")
    far[-1] = 1e30
    assert np.isfinite(rule.mix(geometry(far)).matrix).all()
    assert rule.mix(geometry(far)).matrix[0, K - 1] < 1e-6
