"""The sorting network against NumPy's sort."""

from __future__ import annotations

import numpy as np
import pytest

from honestly.passes.ranking import LARGEST_NETWORK, network, rank_device, rank_rows


@pytest.mark.parametrize("rows", [*range(1, 34), 63, LARGEST_NETWORK, LARGEST_NETWORK + 1, 300])
def test_all_ranks(rows: int) -> None:
    block = np.random.default_rng(rows).integers(0, 9, size=(rows, 200)).astype(np.float32)
    expected = np.sort(block, axis=0)
    np.testing.assert_array_equal(rank_device(block, np, 0, rows), expected)
    np.testing.assert_array_equal(rank_rows(block.copy(), 0, rows), expected)


@pytest.mark.parametrize("rows", [3, 10, 20, 21, 64, 100])
def test_some_ranks_cost_less(rows: int) -> None:
    block = np.random.default_rng(rows).normal(size=(rows, 500))
    expected = np.sort(block, axis=0)
    for first, last in ((0, 1), ((rows - 1) // 2, rows // 2 + 1), (rows - 1, rows), (1, rows - 1)):
        np.testing.assert_array_equal(rank_rows(block.copy(), first, last), expected[first:last])
        np.testing.assert_array_equal(rank_device(block, np, first, last), expected[first:last])
    assert len(network(rows, 0, 1)) < len(network(rows, 0, rows))
