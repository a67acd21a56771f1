"""Every way to the Gram matrix of a block of rows, against a plain product in float64."""

from __future__ import annotations

import numpy as np
import pytest

from honestly.engine.passes import passes_over
from honestly.engine.passes.blas import MOST_TILED, gram_of, way_for
from honestly.sources import open_source


@pytest.mark.parametrize("n", [1, 2, 20, 43, 45, 46, 64, MOST_TILED, MOST_TILED + 1, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gram_matrix_is_right_whatever_the_number_of_threads(
    way: str, n: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(n).normal(size=(n, 4001)).astype(dtype)
    X[0, 7] = 30.0
    C = X.astype(np.float64) - X[n // 2].astype(np.float64)
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("HONESTLY_THREADS", threads)
        source = open_source(X)
        found.append(passes_over(source).gram(range(n), n // 2)[0])
    np.testing.assert_allclose(found[0], C @ C.T, rtol=0, atol=(3e-6 if dtype == np.float32 else 1e-12) * 4001 * 2)
    np.testing.assert_array_equal(found[0], found[0].T)
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("n", [20, 64, MOST_TILED + 1])
def test_a_row_that_is_not_finite_spoils_its_own_row_and_column_only(way: str, n: int) -> None:
    X = np.random.default_rng(n).normal(size=(n, 1500)).astype(np.float32)
    X[3, 1200] = np.nan
    G = passes_over(open_source(X)).gram(range(n), 0)[0]
    wrong = ~np.isfinite(G)
    assert wrong[3].all()
    assert wrong[:, 3].all()
    assert wrong.sum() == 2 * n - 1


def test_ways_leave_blas_its_threads_only_for_many_rows() -> None:
    assert way_for(20).own_threads
    assert way_for(MOST_TILED).own_threads
    assert not way_for(MOST_TILED + 1).own_threads


@pytest.mark.parametrize("n", [1, 3, 20, 64, MOST_TILED + 1])
def test_the_products_of_a_sample(n: int) -> None:
    X = np.random.default_rng(n).normal(size=(n, 2000))
    G = gram_of(X)
    np.testing.assert_allclose(G, X @ X.T, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(G, G.T)
