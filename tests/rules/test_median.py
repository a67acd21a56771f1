import numpy as np
import pytest

from honestly.rules.median import Median

from .clients import honest, value


@pytest.mark.parametrize("K", [1, 2, 3, 8, 9])
def test_matches_numpy(K):
    X = honest(K)
    np.testing.assert_array_equal(value(Median(), X), np.median(X, axis=0))


def test_two_values_near_the_largest_float_do_not_overflow():
    big = np.full((2, 1), 3e38, dtype=np.float32)
    assert np.isfinite(Median().reduce(big, np)).all()
