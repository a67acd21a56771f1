import numpy as np
import pytest

from honestly.rules.krum import Krum

from .clients import geometry, honest, value


def naive_scores(X, f):
    K = len(X)
    scores = []
    for k in range(K):
        distances = sorted(float(np.sum((X[k] - X[j]) ** 2)) for j in range(K) if j != k)
        scores.append(sum(distances[: K - f - 2]))
    return scores


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("K", "f"), [(4, 0), (9, 3), (20, 4), (20, 8)])
def test_matches_the_loop(K, f, seed):
    X = honest(K, seed=seed)
    scores = naive_scores(X, f)
    np.testing.assert_allclose(Krum(f=f).mix(geometry(X)).diagnostics["scores"], scores, rtol=1e-9)
    np.testing.assert_allclose(value(Krum(f=f), X), X[int(np.argmin(scores))])


def test_names_the_bound():
    with pytest.raises(ValueError, match=r"Krum\(f=9\) needs at least 2f\+3 = 21 clients, got 20"):
        Krum(f=9).mix(geometry(honest(20)))


def test_a_far_client_does_not_reduce_the_precision_of_the_others():
    X = honest(9)
    X[8] = 1e12
    scores = naive_scores(X, 2)
    np.testing.assert_array_equal(value(Krum(f=2), X), X[int(np.argmin(scores))])
