from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from honestly import Status
from honestly.rules.minimum_variance import MinimumVariance

from .clients import geometry, honest, populations, scatter, value


def naive(X, f):
    best = min(combinations(range(len(X)), len(X) - f), key=lambda S: scatter(X[list(S)]))
    return X[list(best)].mean(axis=0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("K", "f"), [(1, 0), (3, 1), (8, 3), (11, 5), (12, 2)])
@pytest.mark.parametrize("d", [1, 3, 200])
def test_matches_the_loop(K, f, seed, d):
    X = honest(K, d, seed)
    np.testing.assert_allclose(value(MinimumVariance(f=f), X), naive(X, f), atol=1e-9)


@settings(deadline=None)
@given(st.integers(3, 9), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 30.0]), st.data())
def test_proposition_1(K, d, seed, shift, data):
    """|wbar_S - wbar_B|^2 <= kappa/(K-M) sum_B |w_k - wbar_B|^2 for EVERY B, with kappa = 4 (1 + M/(K-2M))."""
    M = data.draw(st.integers(0, (K - 1) // 2))
    X = honest(K, d, seed)
    X[:M] += shift
    z = value(MinimumVariance(f=M), X)
    kappa = 4 * (1 + M / (K - 2 * M))
    for B in combinations(range(K), K - M):
        XB = X[list(B)]
        assert np.sum((z - XB.mean(axis=0)) ** 2) <= kappa / (K - M) * scatter(XB) * (1 + 1e-9) + 1e-18


@pytest.mark.parametrize("population", populations(20), ids=list(populations(20)))
def test_twenty_clients_are_solved_for_any_f(population):
    X = populations(20)[population]
    for f in range(10):
        assert MinimumVariance(f=f).mix(geometry(X)).diagnostics["exact"]


def test_reports_the_variance_of_the_subset():
    X = honest(9)
    mix = MinimumVariance(f=3).mix(geometry(X))
    S = mix.diagnostics["selected"]
    assert mix.diagnostics["variance"] == pytest.approx(scatter(X[S]) / 6)


def test_status_reports_an_incomplete_search():
    mix = MinimumVariance(f=14, work=200).mix(geometry(honest(30, 1000)))
    assert mix.status is Status.STEP_LIMIT
    assert not mix.diagnostics["exact"]
    assert np.count_nonzero(mix.matrix) == 16


def test_ties_of_copies():
    X = np.repeat(np.eye(3), 3, axis=0)
    assert MinimumVariance(f=4).mix(geometry(X)).diagnostics["exact"]
