"""Where the Bayesian rule leaves early, the longer way finds the same."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from honestly.rules import _neighbourhoods, _posterior, _votes
from honestly.rules.base import GramGeometry
from honestly.rules.bayesian import Bayesian, geometric_median
from honestly.rules.neighbours import majority

from .clients import geometry

rule = importlib.import_module("honestly.rules.bayesian")  # honestly.rules is also a function


def clients(seed: int, K: int, shift: float, liars: int, d: int = 200) -> GramGeometry:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(K, d)) * np.exp(0.3 * rng.normal(size=(K, 1)))
    X[K - liars :] += shift * rng.normal(size=d)
    return geometry(X)


@given(st.integers(0, 10**6), st.integers(3, 25), st.floats(0, 6), st.data())
def test_with_and_without_shortcuts(seed: int, K: int, shift: float, data: st.DataObject) -> None:
    found = clients(seed, K, shift, data.draw(st.integers(0, (K - 1) // 2)))
    short = Bayesian().mix(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_posterior, "_all_honest", lambda *_: False)  # logarithms and the E-step every time
        patch.setattr(rule, "separated", never_at_once)
        patch.setattr(rule, "SETTLED", 0.0)
        long = Bayesian().mix(GramGeometry(found.gram))
    np.testing.assert_allclose(short.matrix, long.matrix, atol=1e-8)
    np.testing.assert_allclose(short.honesty, long.honesty, atol=1e-8)
    assert short.status is long.status


def never_at_once(found: GramGeometry, errors: np.ndarray, h: int, otherwise: np.ndarray, s2: float):
    """`separated` that always asks the EM, from distances of its own."""
    n = found.K
    N = np.zeros((n, n))
    np.put_along_axis(N, np.argsort(found.distances, axis=1, kind="stable")[:, :h], 1.0 / h, axis=1)
    near = GramGeometry(N @ found.gram @ N.T)
    floored = _neighbourhoods.Floored(near, 0.5 * s2 * (1.0 / h - 1.0 / n + 1.0 / h**2))
    start = _neighbourhoods.tightest(near.distances, h)
    q = _posterior.em(
        floored, start, np.ones(n), prior=None, h=h, steps=100, tolerance=1e-7, slack=_neighbourhoods.PLAIN
    )
    if q.pi.min() == 1.0:
        return otherwise, None
    return q.weights @ N, -2.0 * np.log(n) * (1.0 - q.pi)


def test_the_shortcuts_are_taken_when_all_are_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare the long way with itself."""
    monkeypatch.setattr(_posterior, "e_step", None)
    monkeypatch.setattr(_neighbourhoods, "em", None)
    out = Bayesian().mix(clients(0, 20, 0.0, 0))
    assert out.honesty is not None
    assert (out.honesty == 1).all()


def test_equal_distances_go_to_the_first() -> None:
    square = geometry(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    np.testing.assert_array_equal(
        _neighbourhoods.nearest(square, 2) * 2, [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    )


@given(st.integers(0, 10**6), st.integers(3, 30), st.floats(-30, 30))
def test_votes_are_those_of_the_cosines(seed: int, K: int, log_size: float) -> None:
    X = np.random.default_rng(seed).normal(size=(K, 40)) * np.exp(log_size)
    G = X @ X.T
    a = geometric_median(GramGeometry(G), majority(K))
    E = X - a @ X
    cosines = E @ E.T / np.linalg.norm(E, axis=1)[:, None] / np.linalg.norm(E, axis=1)[None, :]
    expected = 1.0 / (np.maximum(cosines, 0.0) ** 4).sum(axis=1)
    np.testing.assert_allclose(_votes.shared_votes(_votes.likeness(_votes.centred(G, a))), expected, rtol=1e-6)
