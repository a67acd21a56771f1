import math

import numpy as np
import pytest

from honestly.rules.arc import ARC

from .clients import honest, mixtures


@pytest.mark.parametrize(("K", "f"), [(1, 0), (3, 1), (12, 0), (12, 3), (20, 9)])
@pytest.mark.parametrize("reference", [None, np.linspace(-1, 1, 7)])
def test_matches_the_loop(K, f, reference):
    X = honest(K)
    origin = np.zeros(7) if reference is None else reference
    k = math.floor(2 * f / K * (K - f) + 1e-9)
    radius = sorted((np.linalg.norm(x - origin) for x in X), reverse=True)[k]
    expected = [origin + (x - origin) * min(1.0, radius / np.linalg.norm(x - origin)) for x in X]
    np.testing.assert_allclose(mixtures(ARC(f=f), X, reference=reference), expected, rtol=1e-9)
