import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules.bucketing import Bucketing
from honestly.rules.monna import MoNNA

from .clients import geometry, honest, mixtures


@pytest.mark.parametrize(("K", "size"), [(1, 2), (7, 2), (8, 2), (10, 4), (3, 9)])
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


def test_buckets_of_one_are_the_clients_under_their_names():
    X = honest(7)
    X[3] += 100.0
    trusted = MoNNA(f=3, trusted=3)
    np.testing.assert_array_equal(aggregate(X, trusted, pre=[Bucketing(size=1)]).weights, aggregate(X, trusted).weights)
