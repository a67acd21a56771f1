import array_api_strict
import numpy as np
import pytest

from honestly.rules._lib.windows import mean_nearest_to_median

from .clients import honest


def naive(ranked, count):
    out = []
    for column in ranked.T:
        median = np.median(column)
        nearest = sorted(column, key=lambda v: (abs(v - median), v))[:count]
        out.append(sum(nearest) / count)
    return np.array(out)


@pytest.mark.parametrize(("m", "count"), [(1, 1), (5, 5), (5, 1), (8, 3), (9, 4), (20, 11)])
def test_matches_the_loop_in_the_strict_standard(m, count):
    ranked = np.sort(honest(m, 50), axis=0)
    out = mean_nearest_to_median(array_api_strict.asarray(ranked), count, array_api_strict)
    np.testing.assert_allclose(np.asarray(out), naive(ranked, count), rtol=1e-12)


def test_of_two_windows_equally_near_the_lower_is_taken():
    ranked = np.array([[0.0], [1.0], [2.0]])
    assert mean_nearest_to_median(ranked, 2, np)[0] == 0.5


def test_of_two_copies_one_may_be_near_enough():
    ranked = np.array([[0.0], [0.0], [2.0], [3.0], [9.0]])
    assert mean_nearest_to_median(ranked, 3, np)[0] == 5 / 3  # 2, 3 and one of the zeros


@pytest.mark.parametrize(("m", "count"), [(5, 3), (8, 3), (9, 5), (20, 11)])
def test_matches_the_loop_on_copies(m, count):
    ranked = np.sort(np.round(honest(m, 200)), axis=0)
    np.testing.assert_allclose(mean_nearest_to_median(ranked, count, np), naive(ranked, count), rtol=1e-12, atol=1e-12)
