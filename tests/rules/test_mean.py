import numpy as np
import pytest

from honestly import AggregationError
from honestly.rules.mean import Mean

from .clients import geometry, honest, value


def test_matches_the_loop():
    X = honest()
    np.testing.assert_allclose(value(Mean(), X), sum(X) / len(X))


def test_trusted_sizes_are_weights():
    X = honest(3)
    s = np.array([1.0, 2.0, 5.0])
    expected = (1 * X[0] + 2 * X[1] + 5 * X[2]) / 8
    np.testing.assert_allclose(value(Mean(sizes="trusted"), X, sizes=s), expected)


def test_sizes_are_ignored_unless_asked_for():
    X = honest(3)
    np.testing.assert_allclose(value(Mean(), X, sizes=np.array([1.0, 2.0, 1e9])), X.mean(0))


@pytest.mark.parametrize("lie", [np.nan, -5.0, np.inf, -np.inf, 0.0])
@pytest.mark.parametrize("mode", ["capped", "trusted"])
def test_an_impossible_size_excludes_only_its_client(mode, lie):
    X = honest(5)
    s = np.array([10.0, 20.0, 30.0, 40.0, lie])
    without = value(Mean(sizes=mode), X[:4], sizes=s[:4])
    weights = Mean(sizes=mode).mix(geometry(X, sizes=s)).matrix[0]
    assert weights[4] == 0.0
    np.testing.assert_allclose(value(Mean(sizes=mode), X, sizes=s), without)


@pytest.mark.parametrize("lie", [1e9, 1e308])
def test_a_huge_size_counts_for_no_more_than_the_cap(lie):
    weights = Mean(sizes="capped", cap=2.0).mix(geometry(honest(4), sizes=np.array([10.0, 10.0, 10.0, lie]))).matrix[0]
    np.testing.assert_allclose(weights, np.array([1, 1, 1, 2]) / 5)


@pytest.mark.parametrize("mode", ["capped", "trusted"])
def test_sizes_near_the_largest_float_do_not_overflow(mode):
    weights = Mean(sizes=mode).mix(geometry(honest(2), sizes=np.array([1.7e308, 1.7e308]))).matrix[0]
    np.testing.assert_allclose(weights, 0.5)


def test_missing_sizes_are_an_error_of_the_caller():
    with pytest.raises(ValueError, match="sizes="):
        Mean(sizes="capped").mix(geometry(honest(3)))


def test_no_average_without_a_valid_size():
    with pytest.raises(AggregationError, match="none of the 2 clients"):
        Mean(sizes="capped").mix(geometry(honest(2), sizes=np.array([np.nan, -1.0])))
