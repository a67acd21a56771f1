"""Every way to compute the Gram matrix of a block of rows, compared with a plain product in float64."""

from __future__ import annotations

import numpy as np
import pytest

from honestly.engine.passes import blas, passes_over
from honestly.engine.passes.blas import MOST_TILED, MOST_VECTOR_ROWS, gram_of, way_for, weigh_rows
from honestly.sources import open_source


@pytest.mark.parametrize("n", [1, 2, 20, 43, 45, 46, 64, MOST_TILED, MOST_TILED + 1, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wide", [False, True])
def test_the_gram_matrix_is_right_whatever_the_number_of_threads(
    way: str, n: int, dtype: type, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "wide_kernels", lambda: wide)
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


@pytest.mark.parametrize(
    ("cores", "features", "name", "wide"),
    [
        ("", ["X86_V3", "X86_V4"], "scipy-openblas", True),
        ("", ["AVX512F", "AVX512_SKX"], "openblas64", True),
        ("", ["X86_V3"], "scipy-openblas", False),
        ("Haswell", ["X86_V4"], "scipy-openblas", False),
        ("SkylakeX", ["X86_V4"], "scipy-openblas", True),
        ("", ["X86_V4"], "mkl-sdl", False),
        ("", ["ASIMD"], "accelerate", False),
        ("", ["X86_V4"], "none", False),
    ],
)
def test_the_kernels_of_the_blas_are_known_by_their_class(
    cores: str, features: list[str], name: str, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"SIMD Extensions": {"found": features}, "Build Dependencies": {"blas": {"name": name}}}
    monkeypatch.setattr(blas.np, "show_config", lambda mode: config)
    monkeypatch.setenv("OPENBLAS_CORETYPE", cores)
    assert blas.wide_kernels.__wrapped__() is wide
    monkeypatch.setattr(blas.np, "show_config", lambda mode: {})  # a build without information
    assert blas.wide_kernels.__wrapped__() is False


@pytest.mark.parametrize("n", [1, 2, 20, MOST_VECTOR_ROWS])
@pytest.mark.parametrize("width", [1, 31, 447, 20_000])
def test_rows_are_weighed(n: int, width: int) -> None:
    rng = np.random.default_rng(n + width)
    wider = rng.normal(size=(n, width + 7)).astype(np.float32)
    weights, out = rng.random(n).astype(np.float32), np.empty(width, np.float32)
    rows = wider[:, 3 : width + 3]  # as they lie in a larger array
    weigh_rows(weights, rows, out)
    np.testing.assert_allclose(out, weights.astype(np.float64) @ rows, rtol=0, atol=2e-6 * n)
