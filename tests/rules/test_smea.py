from itertools import combinations

import numpy as np
import pytest

from honestly import Status
from honestly.rules.smea import SMEA

from .clients import geometry, honest, populations, value


def top(X):
    return float(np.linalg.eigvalsh(np.cov(X.T, bias=True).reshape(X.shape[1], -1))[-1])


def naive(X, f):
    best = min(combinations(range(len(X)), len(X) - f), key=lambda S: top(X[list(S)]))
    return X[list(best)].mean(axis=0), top(X[list(best)])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "f"), [(3, 1), (8, 3), (9, 4), (10, 1), (6, 0)])
@pytest.mark.parametrize("d", [1, 3, 12])
def test_matches_the_loop(K, f, seed, d):
    X = honest(K, d, seed)
    expected, eigenvalue = naive(X, f)
    mix = SMEA(f=f).mix(geometry(X))
    assert mix.status is Status.CONVERGED
    assert mix.diagnostics["eigenvalue"] == pytest.approx(eigenvalue, rel=1e-6)
    np.testing.assert_allclose(value(SMEA(f=f), X), expected, atol=1e-9)


@pytest.mark.parametrize("population", populations(20), ids=list(populations(20)))
def test_twenty_clients_are_solved(population):
    X = populations(20)[population]
    for f in (2, 5, 9):
        assert SMEA(f=f).mix(geometry(X)).diagnostics["exact"]


def test_status_reports_an_incomplete_search():
    mix = SMEA(f=10, work=1000).mix(geometry(honest(30, 500)))
    assert mix.status is Status.STEP_LIMIT
    assert np.count_nonzero(mix.matrix) == 20
