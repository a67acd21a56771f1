from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from honestly.sim.partition import PARTITIONS, partition


@given(
    kind=st.sampled_from(sorted(PARTITIONS)),
    clients=st.integers(1, 40),
    alpha=st.sampled_from([0.01, 0.5, 1.0, 100.0]),
    seed=st.integers(0, 10),
)
@settings(max_examples=40, deadline=None)
def test_every_image_goes_to_one_client_and_nobody_is_empty(kind: str, clients: int, alpha: float, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 10, 200)
    parts = partition(labels, clients, kind=kind, alpha=alpha, rng=np.random.default_rng(seed))
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(200))
    assert min(map(len, parts)) >= 1


def test_the_papers_partition_has_equal_sizes_and_unequal_classes() -> None:
    labels = np.repeat(np.arange(10), 6000)
    parts = partition(labels, 20, kind="balanced", alpha=0.5, rng=np.random.default_rng(0))
    sizes = [len(p) for p in parts]
    assert min(sizes) >= 2990
    assert max(sizes) <= 3010
    shares = np.array([np.bincount(labels[p], minlength=10) for p in parts]) / 3000
    assert shares.max() > 0.4  # far from the 0.1 of equal shares


def test_unequal_classes_still_give_equal_clients() -> None:
    labels = np.repeat(np.arange(4), [100, 900, 3000, 6000])
    sizes = [len(p) for p in partition(labels, 10, kind="balanced", alpha=0.5, rng=np.random.default_rng(1))]
    assert max(sizes) - min(sizes) <= 8


def test_a_smaller_alpha_is_less_equal() -> None:
    labels = np.repeat(np.arange(10), 600)

    def largest_share(alpha: float) -> float:
        parts = partition(labels, 20, kind="dirichlet", alpha=alpha, rng=np.random.default_rng(0))
        return float(np.mean([np.bincount(labels[p]).max() / len(p) for p in parts]))

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)


def test_shards_give_few_classes_each() -> None:
    labels = np.repeat(np.arange(10), 600)
    parts = partition(labels, 20, kind="shards", alpha=1.0, rng=np.random.default_rng(0))
    assert max(len(np.unique(labels[p])) for p in parts) <= 4


def test_more_clients_than_images() -> None:
    with pytest.raises(ValueError, match="clients = 11: only 10 training images"):
        partition(np.arange(10), 11, kind="iid", alpha=1.0, rng=np.random.default_rng(0))


def test_as_many_clients_as_images_take_no_minute() -> None:
    """Nearly everybody is empty at first; looking for the smallest client anew each time took K^2 steps."""
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    start = time.process_time()
    parts = partition(labels, 20_000, kind="dirichlet", alpha=0.01, rng=np.random.default_rng(0))
    assert time.process_time() - start < 10
    assert set(map(len, parts)) == {1}
