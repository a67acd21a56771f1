"""The guarantee: no answer is farther from the honest mean than the bound for rules without prior knowledge."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from honestly.rules.bayesian import Bayesian
from honestly.rules.bayesian.guard import all_subsets, certificate, guard, worst_subset
from honestly.rules.bayesian.views import centre_grams
from honestly.rules.rule import GramGeometry
from honestly.studies.layers.patterns import bound, most_tolerated, patterns


@pytest.mark.parametrize("n", [3, 4, 5, 7, 10, 12, 20, 30])
def test_copy_patterns_stay_within_the_bound(n):
    """Idle clients, camps of copies, unequal lengths; liars that copy, jitter, mimic or stand far away."""
    rng = np.random.default_rng(n)
    for f in range(1, most_tolerated(n) + 1):
        found = list(patterns(n, f, rng))
        for pattern in found[:: max(1, len(found) * n // 900)]:
            a = Bayesian().mix(GramGeometry(pattern.updates @ pattern.updates.T)).matrix[0]
            move = a @ pattern.updates
            assert move @ move <= 1.02 * bound(n, f) * pattern.variance, pattern.name


def test_a_lower_ceiling_gives_a_better_bound():
    rng = np.random.default_rng(0)
    n, f = 10, 2
    for pattern in list(patterns(n, f, rng))[::25]:
        a = Bayesian(at_most=0.2).mix(GramGeometry(pattern.updates @ pattern.updates.T)).matrix[0]
        move = a @ pattern.updates
        assert move @ move <= 1.02 * f / (n - f - f) * pattern.variance, pattern.name


def test_the_guard_moves_any_answer_into_all_balls():
    rng = np.random.default_rng(1)
    for n in (5, 8, 11):
        X = rng.normal(size=(n, 4)) * np.exp(rng.normal(size=(n, 1)))
        X[: n // 3] = X[0]
        G, f = X @ X.T, (n - 1) // 2
        worst = np.zeros(n)
        worst[n - 1] = 1.0
        a, _ = guard(G[None], worst[None], f)
        for S in all_subsets(n, n - f):
            mean = S / S.sum() @ X
            variance = S @ ((X - mean) ** 2).sum(axis=1) / S.sum()
            z = a[0] @ X
            assert (z - mean) @ (z - mean) <= 1.002 * f / (S.sum() - f) * variance + 1e-12


def largest_gamma(camps: np.ndarray, counts: np.ndarray, z: np.ndarray, f: int) -> float:
    """Over all sets of clients in camps of copies: what matters is how many of each camp a set has."""
    taken = np.array(list(product(*(range(count + 1) for count in counts))), np.float64)
    taken = taken[taken.sum(axis=1) >= counts.sum() - f]
    m = taken.sum(axis=1)
    mean = taken @ camps / m[:, None]
    variance = (taken * ((camps - mean[:, None]) ** 2).sum(axis=2)).sum(axis=1) / m
    apart = variance > 1e-12
    gamma = ((z - mean) ** 2).sum(axis=1)[apart] * (m[apart] - f) / (f * variance[apart])
    return float(gamma.max(initial=0.0))


@pytest.mark.parametrize("n", [26, 30, 50, 100])
def test_the_guard_finds_the_worst_of_sets_of_any_size_among_camps_of_copies(n):
    """From 25 clients on the search does not start from sets of every size."""
    rng = np.random.default_rng(n)
    f = most_tolerated(n)
    for _ in range(60):
        camps = rng.normal(size=(rng.integers(2, 4), 3))
        counts = rng.multinomial(n - len(camps), rng.dirichlet(np.ones(len(camps)))) + 1
        X = np.repeat(camps, counts, axis=0)
        a, _ = guard((X @ X.T)[None], np.eye(n)[None, rng.integers(n)], f)
        assert largest_gamma(camps, counts, a[0] @ X, f) <= 1.002, counts


def test_the_certificate_is_an_upper_bound():
    rng = np.random.default_rng(2)
    for n in (4, 7, 10):
        X = rng.normal(size=(n, 3))
        a = np.full(n, 1 / n)
        G = X @ X.T
        errors = centre_grams(G[None], a[None])
        e = X - a @ X
        ratios = [(S @ e) @ (S @ e) / max(S @ (e**2).sum(axis=1), 1e-300) for S in all_subsets(n, 1)]
        assert max(ratios) <= certificate(errors)[0] * (1 + 1e-9)


def test_an_answer_within_the_bound_is_not_changed():
    X = np.random.default_rng(3).normal(size=(20, 200))
    a = np.full((1, 20), 1 / 20)
    same, changed = guard((X @ X.T)[None], a, 9)
    assert changed == 0
    assert same is a


def test_the_search_among_many_clients_agrees_with_all_subsets():
    rng = np.random.default_rng(4)
    for _ in range(5):
        X = np.vstack([np.zeros((5, 6)), rng.normal(size=(7, 6))])
        G, a = X @ X.T, np.eye(12)[11]
        _, exact = worst_subset(G, a, 5)
        wide = np.zeros((13, 13))
        wide[:12, :12] = G
        wide[12, :12] = wide[:12, 12] = G[0]
        wide[12, 12] = G[0, 0]
        _, found = worst_subset(wide, np.append(a, 0.0), 6)
        assert found > 1 < exact
