from itertools import combinations

import numpy as np
import pytest

from honestly import Status
from honestly.rules.mda import MDA

from .clients import geometry, honest, populations, scatter, value


def diameter(X):
    return max((float(np.linalg.norm(x - y)) for x in X for y in X), default=0.0)


def naive(X, f):
    subsets = [X[list(S)] for S in combinations(range(len(X)), len(X) - f)]
    smallest = min(map(diameter, subsets))
    return min((S for S in subsets if diameter(S) <= smallest * (1 + 1e-9)), key=scatter).mean(axis=0), smallest


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "f"), [(1, 0), (3, 1), (8, 3), (9, 4)])
@pytest.mark.parametrize("d", [1, 3, 100])
def test_matches_the_loop(K, f, seed, d):
    X = honest(K, d, seed)
    expected, smallest = naive(X, f)
    mix = MDA(f=f).mix(geometry(X))
    assert mix.diagnostics["diameter"] == pytest.approx(smallest, abs=1e-6)
    np.testing.assert_allclose(value(MDA(f=f), X), expected, atol=1e-9)


@pytest.mark.parametrize("population", populations(20), ids=list(populations(20)))
def test_twenty_clients_are_solved_for_any_f(population):
    X = populations(20)[population]
    for f in range(10):
        assert MDA(f=f).mix(geometry(X)).diagnostics["exact"]


def test_status_reports_an_incomplete_search():
    mix = MDA(f=14, work=200).mix(geometry(honest(30, 1000)))
    assert mix.status is Status.STEP_LIMIT
    assert np.count_nonzero(mix.matrix) == 16
