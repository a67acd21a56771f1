import numpy as np
import pytest

from honestly.rules.centered_clipping import CenteredClipping

from .clients import geometry, honest, value


def naive(X, v, tau, steps):
    for _ in range(steps):
        move = np.zeros_like(v)
        radius = np.median([np.linalg.norm(x - v) for x in X]) if tau is None else tau
        for x in X:
            move += (x - v) * min(1.0, radius / np.linalg.norm(x - v))
        v = v + move / len(X)
    return v


@pytest.mark.parametrize("tau", [None, 0.5, 100.0])
@pytest.mark.parametrize("steps", [1, 4])
def test_matches_the_loop_from_the_reference(tau, steps):
    X = honest()
    reference = X[0] + 0.3
    rule = CenteredClipping(tau=tau, steps=steps)
    np.testing.assert_allclose(value(rule, X, reference=reference), naive(X, reference, tau, steps), rtol=1e-9)


def test_starts_from_a_central_client_without_a_reference():
    X = honest(9)
    h = 5
    reach = [sorted(np.linalg.norm(x - y) for y in X)[h - 1] for x in X]
    start = X[int(np.argmin(reach))] + 1e-12  # the naive loop divides by the distance
    np.testing.assert_allclose(value(CenteredClipping(tau=2.0, steps=3), X), naive(X, start, 2.0, 3), rtol=1e-6)


def test_reference_gets_the_clipped_weight():
    X = honest(4)
    mix = CenteredClipping(tau=1e-3, steps=1).mix(geometry(X, reference=np.zeros(7)))
    assert 0.99 < 1.0 - mix.matrix.sum() < 1.0


def test_without_a_reference_the_weights_sum_to_one():
    mix = CenteredClipping(tau=0.1).mix(geometry(honest(6)))
    assert mix.matrix.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("X", [honest(2), np.repeat(honest(2), 2, axis=0)], ids=["two clients", "two camps"])
def test_of_equally_central_clients_none_comes_first(X):
    np.testing.assert_allclose(value(CenteredClipping(), X), X.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(value(CenteredClipping(), X[::-1]), X.mean(axis=0), rtol=1e-9)
