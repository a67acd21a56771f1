import numpy as np
import pytest

from honestly.rules._lib.spectra import centre_gram, top_eigenpair

from .clients import honest


@pytest.mark.parametrize("K", [1, 2, 30, 201, 400])
def test_top_eigenpair(K):
    X = honest(K, 60)
    M = X @ X.T
    value, vector = top_eigenpair(M)
    assert value == pytest.approx(np.linalg.eigvalsh(M)[-1], rel=1e-9)
    np.testing.assert_allclose(M @ vector, value * vector, atol=1e-6 * value)
    assert np.linalg.norm(vector) == pytest.approx(1.0)


@pytest.mark.parametrize("M", [np.zeros((300, 300)), np.eye(300), np.diag(np.arange(300.0))])
def test_hard_spectra_fall_back(M):
    value, vector = top_eigenpair(M)
    np.testing.assert_allclose(M @ vector, value * vector, atol=1e-6 * max(value, 1))
    assert value == pytest.approx(M.max())


def test_centred():
    X = honest(9)
    a = np.random.default_rng(0).dirichlet(np.ones(9))
    C = X - a @ X
    np.testing.assert_allclose(centre_gram(X @ X.T, a), C @ C.T, atol=1e-9)
