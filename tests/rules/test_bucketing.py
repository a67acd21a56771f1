import numpy as np
import pytest

from honestly.rules.bucketing import Bucketing

from .clients import geometry, honest, mixtures


@pytest.mark.parametrize(("K", "size"), [(1, 2), (7, 1), (7, 2), (8, 2), (10, 4), (3, 9)])
def test_matches_the_loop(K, size):
    X = honest(K)
    order = list(np.random.default_rng(5).permutation(K))
    buckets = [order[i : i + size] for i in range(0, K, size)]
    np.testing.assert_allclose(
        mixtures(Bucketing(size=size, seed=5), X), [sum(X[k] for k in b) / len(b) for b in buckets], rtol=1e-12
    )


def test_every_client_is_in_one_bucket():
    A = Bucketing(size=3, seed=1).mix(geometry(honest(10)))
    np.testing.assert_array_equal(np.count_nonzero(A, axis=0), 1)


def test_the_next_round_draws_again_and_repeats_with_its_seed():
    now, then = Bucketing(size=2, seed=3), Bucketing(size=2, seed=3).after({})
    g = geometry(honest(20))
    assert not np.array_equal(now.mix(g), then.mix(g))
    np.testing.assert_array_equal(now.mix(g), Bucketing(size=2, seed=3).mix(g))
