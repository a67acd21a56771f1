import numpy as np
import pytest

from honestly.rules.bulyan import Bulyan

from .clients import geometry, honest, value


def naive(X, f):
    K = len(X)
    left, chosen = list(range(K)), []
    while len(chosen) < K - 2 * f:
        n = len(left)
        scores = []
        for k in left:
            distances = sorted(float(np.sum((X[k] - X[j]) ** 2)) for j in left if j != k)
            middle = distances[(n - 1) // 2] if n > 1 else 0.0
            scores.append((sum(distances[: max(1, n - f - 2)]), middle))
        chosen.append(left.pop(scores.index(min(scores))))
    out = []
    for column in X[chosen].T:
        median = np.median(column)
        nearest = sorted(column, key=lambda v: abs(v - median))[: K - 4 * f]
        out.append(sum(nearest) / len(nearest))
    return np.array(out)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("K", "f"), [(3, 0), (7, 1), (20, 4), (19, 4), (15, 2)])
def test_matches_the_loop(K, f, seed):
    X = honest(K, seed=seed)
    np.testing.assert_allclose(value(Bulyan(f=f), X), naive(X, f), rtol=1e-12)


def test_a_huge_value_does_not_cancel_the_rest():
    X = np.sort(honest(5, d=1), axis=0)
    ranked = np.vstack([X, [[1e18]]])
    out = Bulyan(f=1).reduce(ranked, np)  # the 4 values nearest to the median
    median = np.median(ranked)
    nearest = sorted(ranked[:, 0], key=lambda v: abs(v - median))[:4]
    np.testing.assert_allclose(out, sum(nearest) / 4, rtol=1e-12)


def test_names_the_bound():
    with pytest.raises(ValueError, match=r"Bulyan\(f=5\) needs at least 4f\+3 = 23 clients, got 20"):
        Bulyan(f=5).mix(geometry(honest(20)))
