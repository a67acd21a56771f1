import numpy as np
import pytest

from honestly.rules import QUE, DnC
from honestly.rules.que import que_scores

from .clients import geometry, honest, value


def expm(M):
    """A Taylor series after scaling, and squaring."""
    A, out, term = M / 2**10, np.eye(len(M)), np.eye(len(M))
    for n in range(1, 20):
        term = term @ A / n
        out = out + term
    for _ in range(10):
        out = out @ out
    return out


def naive_scores(X, alpha):
    C = X - X.mean(axis=0)
    cov = C.T @ C / len(X)
    U = expm(alpha * cov / np.linalg.norm(cov, 2))
    U /= np.trace(U)
    return np.array([c @ U @ c for c in C])


@pytest.mark.parametrize("alpha", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(("K", "d"), [(3, 5), (12, 7), (9, 30)])
def test_scores_match_the_matrix_exponential(K, d, alpha):
    X = honest(K, d)
    ours, theirs = que_scores(geometry(X).gram, alpha), naive_scores(X, alpha)
    np.testing.assert_allclose(ours / ours.sum(), theirs / theirs.sum(), rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_matches_the_loop(seed):
    X = honest(12, 8, seed)
    X[9:] += np.eye(8)[:3] * 30
    left = list(range(12))
    for _ in range(3):
        scores = naive_scores(X[left], 4.0)
        left.pop(int(np.argmax(scores)))
    np.testing.assert_allclose(value(QUE(f=3), X), X[left].mean(axis=0))
    assert left == list(range(9))


def test_detects_attackers_in_several_directions():
    """Attackers in several directions: the main direction alone (DnC) shows one of them."""
    X = honest(15, 20)
    X[12:] = X[:12].mean(axis=0) + np.diag([9.0, 50.0, 300.0]) @ np.eye(20)[:3]
    assert QUE(f=3).mix(geometry(X)).matrix[0, 12:].sum() == 0
    assert DnC(f=3).mix(geometry(X)).matrix[0, 12:].sum() > 0
