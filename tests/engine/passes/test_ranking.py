"""The networks against NumPy's sort, and against all patterns of zeros and ones."""

from __future__ import annotations

import numpy as np
import pytest

from honestly.arrays import LARGEST
from honestly.engine.passes.medians import MEDIAN_PAIRS
from honestly.engine.passes.networks import SortingNetwork, selection_network, sorting_network
from honestly.engine.passes.plain import LONGEST_DOT, all_finite
from honestly.engine.passes.ranking import LARGEST_NETWORK, mean_of_rows, network_of, rank_device, rank_rows
from honestly.rules.meamed import Meamed
from honestly.rules.trimmed_mean import TrimmedMean


def ranks(rows: int, first: int, last: int) -> SortingNetwork:
    return (
        sorting_network(rows, first, last) if rows <= LARGEST_NETWORK else SortingNetwork((), tuple(range(first, last)))
    )


@pytest.mark.parametrize("rows", [*range(1, 34), 63, LARGEST_NETWORK, LARGEST_NETWORK + 1, 300])
def test_all_ranks(rows: int) -> None:
    block = np.random.default_rng(rows).integers(0, 9, size=(rows, 200)).astype(np.float32)
    before, expected = block.copy(), np.sort(block, axis=0)
    np.testing.assert_array_equal(rank_device(block, np, ranks(rows, 0, rows)), expected)
    np.testing.assert_array_equal(rank_rows(block, ranks(rows, 0, rows)), expected)
    np.testing.assert_array_equal(block, before)


@pytest.mark.parametrize("rows", [3, 10, 20, 21, 64, 100])
def test_some_ranks_cost_less(rows: int) -> None:
    block = np.random.default_rng(rows).normal(size=(rows, 500))
    expected = np.sort(block, axis=0)
    for first, last in ((0, 1), ((rows - 1) // 2, rows // 2 + 1), (rows - 1, rows), (1, rows - 1)):
        network = ranks(rows, first, last)
        np.testing.assert_array_equal(rank_rows(block, network), expected[first:last])
        np.testing.assert_array_equal(rank_device(block, np, network), expected[first:last])
    assert sorting_network(rows, 0, 1).operations < sorting_network(rows, 0, rows).operations


@pytest.mark.parametrize("rows", range(1, 15))
def test_the_kept_values_are_the_right_ones_for_all_zeros_and_ones(rows: int) -> None:
    """A network that sets the extremes of every pattern of zeros and ones apart does so for all values."""
    patterns = ((np.arange(2**rows)[None, :] >> np.arange(rows)[:, None]) & 1).astype(np.float32)
    for g in range((rows - 1) // 2 + 1):
        network = selection_network(rows, g, rows - g)
        kept = np.sort(patterns, axis=0)[g : rows - g].sum(axis=0)
        np.testing.assert_array_equal(np.sum(rank_rows(patterns, network), axis=0), kept)
        assert network.operations <= sorting_network(rows, g, rows - g).operations


@pytest.mark.parametrize(("rows", "g"), [(20, 4), (20, 1), (33, 5), (80, 16)])
def test_the_kept_values_of_many_rows(rows: int, g: int) -> None:
    block = np.random.default_rng(rows).normal(size=(rows, 300)).astype(np.float32)
    kept = rank_rows(block, selection_network(rows, g, rows - g))
    np.testing.assert_array_equal(np.sort(kept, axis=0), np.sort(block, axis=0)[g : rows - g])
    np.testing.assert_array_equal(
        np.sort(rank_device(block, np, selection_network(rows, g, rows - g)), axis=0), np.sort(kept, 0)
    )
    np.testing.assert_allclose(mean_of_rows(kept), np.mean(kept, axis=0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", sorted(MEDIAN_PAIRS))
def test_the_median_of_all_zeros_and_ones(rows: int) -> None:
    """Patterns are bits: the minimum of two is their conjunction, the maximum their disjunction."""
    count = max(8, 2**rows)
    bits = [np.packbits(np.arange(count, dtype=np.uint32) >> row & 1) for row in range(rows)]
    ones = np.bitwise_count(np.arange(count, dtype=np.uint32) & 2**rows - 1)
    first, last = (rows - 1) // 2, rows // 2 + 1
    network = selection_network(rows, first, last)
    for low, high, _, _ in network.comparators:
        bits[low], bits[high] = bits[low] & bits[high], bits[low] | bits[high]
    kept = sum(np.unpackbits(bits[row]).astype(int) for row in network.wanted)
    np.testing.assert_array_equal(kept, sum((ones >= rows - rank).astype(int) for rank in range(first, last)))
    assert network.operations <= sorting_network(rows, first, last).operations


def test_rules_that_average_get_the_smaller_network() -> None:
    assert network_of(TrimmedMean(trim=0.2), 20).operations < sorting_network(20, 4, 16).operations
    assert network_of(Meamed(f=4), 20) == sorting_network(20, 0, 20)
    assert network_of(TrimmedMean(trim=0.2), 300).wanted == tuple(range(60, 240))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, LONGEST_DOT - 1, LONGEST_DOT, LONGEST_DOT + 1, 3 * LONGEST_DOT])
def test_a_value_that_cannot_be_used_is_seen_wherever_it_is(width: int, dtype: str) -> None:
    block = np.random.default_rng(width).normal(size=(4, width)).astype(dtype)
    assert all_finite(block)
    assert all_finite(list(block))
    for column in {0, width // 2, width - 1}:
        for value in (np.nan, np.inf, -np.inf, 2 * LARGEST[dtype], -2 * LARGEST[dtype]):
            other = block.copy()
            other[2, column] = value
            assert not all_finite(other)
            assert not all_finite(list(other))
