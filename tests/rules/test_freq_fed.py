import numpy as np
import pytest

from honestly.rules import FLAME, FreqFed
from honestly.rules.freq_fed import dct

from .clients import geometry, honest, value


def naive_dct(x):
    n = len(x)
    out = [sum(x[i] * np.cos(np.pi * (i + 0.5) * k / n) for i in range(n)) * np.sqrt(2 / n) for k in range(n)]
    out[0] *= np.sqrt(0.5)
    return np.array(out)


def naive(X, origin, low=0.5):
    V = [naive_dct(x - origin)[: int(np.ceil(low * len(origin)))] for x in X]
    D = [[1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in V] for a in V]
    groups = [{k} for k in range(len(X))]
    pairs = [(D[i][j], i, j) for i in range(len(X)) for j in range(i)]
    for _, i, j in sorted(pairs):
        a, b = (next(g for g in groups if k in g) for k in (i, j))
        if a is not b:
            groups.remove(b)
            a |= b
        if len(a) > len(X) // 2:
            return sorted(a)
    return list(range(len(X)))


@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_the_transform_is_the_sum_of_cosines(n):
    X = honest(3, n)
    np.testing.assert_allclose(dct(X), [naive_dct(x) for x in X], atol=1e-12)
    np.testing.assert_allclose(dct(X) @ dct(X).T, X @ X.T, rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bad", [0, 5])
def test_matches_the_loop(bad, seed):
    X = honest(13, 24, seed)
    reference = np.linspace(-1, 1, 24)
    X[13 - bad :] = reference - (X[13 - bad :] - reference)
    members = naive(X, reference)
    np.testing.assert_array_equal(FreqFed().mix(geometry(X, reference=reference)).diagnostics["selected"], members)
    np.testing.assert_allclose(value(FreqFed(), X, reference=reference), X[members].mean(axis=0))


def hdbscan_majority(D):
    """From the top: the component that holds a majority loses its farthest members, until it would fall apart."""
    K = len(D)
    members = set(range(K))
    for limit in sorted({D[i][j] for i in range(K) for j in range(i)}, reverse=True):
        groups, rest = [], set(members)
        while rest:
            group, new = set(), {rest.pop()}
            while new:
                group |= new
                rest -= new
                new = {j for j in rest if any(D[i][j] < limit for i in group)}
            groups.append(group)
        largest = max(groups, key=len)
        if len(largest) <= K // 2:
            break
        members = largest
    return sorted(members)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bad", [0, 5])
def test_matches_the_public_code_with_an_orthonormal_transform(bad, seed):
    """Public code clusters by the HDBSCAN library; the same clients here by its definition, from the top down."""
    X = honest(13, 40, seed) + 0.5
    if bad:
        X[13 - bad :] = 0.2 * X[13 - bad :] - honest(1, 40, seed + 9)
    V = [naive_dct(x)[:20] for x in X]
    D = [[1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in V] for a in V]
    selected = FreqFed().mix(geometry(X)).diagnostics["selected"]
    np.testing.assert_array_equal(selected, hdbscan_majority(D))


def test_noise_in_high_frequencies_is_ignored():
    rng = np.random.default_rng(0)
    base = np.ones(32) + 0.02 * rng.normal(size=(9, 32))
    noisy = base + 5.0 * np.resize([1.0, -1.0], 32) * rng.normal(size=(9, 1))
    assert len(FreqFed(low=0.25).mix(geometry(noisy)).diagnostics["selected"]) >= 5
    cosines = noisy @ noisy.T
    assert FLAME().mix(geometry(noisy)).matrix.shape == (1, 9)
    assert cosines.min() < 0  # as whole vectors they point against each other
    liar = noisy.copy()
    liar[0] = -liar[0]
    assert 0 not in FreqFed(low=0.25).mix(geometry(liar)).diagnostics["selected"]
