import numpy as np
import pytest

from honestly.rules._lib.clusters import largest_by_mean_shift
from honestly.rules.sign_guard import SignGuard

from .clients import geometry, honest, value


def naive_largest(F):
    """Mean shift, point by point."""
    n = len(F)
    bandwidth = np.mean([sorted(np.linalg.norm(a - b) for b in F)[max(int(n * 0.5) - 1, 0)] for a in F])
    bandwidth = bandwidth * (1 + 1e-9) + 1e-15
    peaks = []
    for p in F:
        for _ in range(300):
            new = np.mean([x for x in F if np.linalg.norm(x - p) <= bandwidth], axis=0)
            if np.array_equal(new, p):
                break
            p = new
        peaks.append((-sum(np.linalg.norm(x - p) <= bandwidth for x in F), tuple(-p.round(9))))
    centres = []
    for _, p in ((w, tuple(-np.array(n))) for w, n in sorted(peaks)):
        if all(np.linalg.norm(np.subtract(p, c)) > bandwidth for c in centres):
            centres.append(p)
    labels = [int(np.argmin([np.linalg.norm(x - c) for c in centres])) for x in F]
    return [k for k in range(n) if labels[k] == np.argmax(np.bincount(labels))]


def shares(X, origin):
    return np.array([[np.mean(x > origin), np.mean(x == origin), np.mean(x < origin)] for x in X])


def naive(X, origin):
    U = X - origin
    norms = np.linalg.norm(U, axis=1)
    median = np.median(norms)
    alike = naive_largest(shares(X, origin))
    passed = [k for k in alike if 0.1 <= norms[k] / median <= 3.0]
    return origin + sum(U[k] * min(1, median / norms[k]) for k in passed) / len(passed), alike


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "bad"), [(1, 0), (5, 2), (20, 8), (20, 0)])
def test_matches_the_loop(K, bad, seed):
    reference = np.linspace(-1, 1, 60)
    X = honest(K, 60, seed) + 1
    X[K - bad :] = reference - (X[K - bad :] - reference)
    expected, alike = naive(X, reference)
    mix = SignGuard().mix(geometry(X, reference=reference))
    assert list(np.flatnonzero(mix.diagnostics["by_signs"])) == alike
    np.testing.assert_allclose(value(SignGuard(), X, reference=reference), expected, rtol=1e-9)


def test_unusual_lengths_are_dropped():
    X = honest(9, 30)
    X[0] *= 100
    X[1] *= 1e-3
    mix = SignGuard().mix(geometry(X))
    np.testing.assert_array_equal(np.flatnonzero(~mix.diagnostics["by_length"]), [0, 1])
    np.testing.assert_array_equal(mix.matrix[0, :2], 0.0)


def test_clusters_of_equal_points():
    np.testing.assert_array_equal(largest_by_mean_shift(np.ones((4, 3))), np.arange(4))
