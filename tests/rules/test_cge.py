import numpy as np
import pytest

from honestly.rules.cge import CGE

from .clients import honest, value


@pytest.mark.parametrize(("K", "f"), [(1, 0), (5, 2), (20, 9)])
@pytest.mark.parametrize("reference", [None, np.linspace(-1, 1, 7)])
def test_matches_the_loop(K, f, reference):
    X = honest(K)
    origin = np.zeros(7) if reference is None else reference
    shortest = sorted(X, key=lambda x: np.linalg.norm(x - origin))[: K - f]
    np.testing.assert_allclose(value(CGE(f=f), X, reference=reference), sum(shortest) / (K - f))
