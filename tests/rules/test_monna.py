import numpy as np
import pytest

from honestly import AggregationError
from honestly.rules.monna import MoNNA

from .clients import geometry, honest, value


@pytest.mark.parametrize(("K", "f", "trusted"), [(1, 0, 0), (5, 2, 4), (20, 9, 3)])
def test_matches_the_loop(K, f, trusted):
    X = honest(K)
    nearest = sorted(X, key=lambda x: float(np.sum((x - X[trusted]) ** 2)))[: K - f]
    np.testing.assert_allclose(value(MoNNA(f=f, trusted=trusted), X), sum(nearest) / (K - f))


def test_the_trusted_client_is_found_by_name():
    X = honest(4)
    by_name = value(MoNNA(f=1, trusted="mercy"), X, ids=["north", "mercy", "east", "west"])
    np.testing.assert_array_equal(by_name, value(MoNNA(f=1, trusted=1), X))


def test_the_trusted_client_is_always_included_even_with_copies_of_others():
    X = np.vstack([np.zeros((3, 2)), np.ones((1, 2))])
    weights = MoNNA(f=1, trusted=2).mix(geometry(X)).matrix[0]
    assert weights[2] > 0


def test_no_answer_without_the_trusted_client():
    with pytest.raises(AggregationError, match="trusted client 7"):
        MoNNA(f=1, trusted=7).mix(geometry(honest(4)))
