"""The CUDA kernels of the passes, compiled by g++ and run on a CPU: sums and mixtures of parts from one launch."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from honestly.rules._lib.windows import mean_nearest_to_median

EMULATE = Path(__file__).parents[2] / "sim" / "emulate.h"
MORE = """
static float __shfl_down_sync(unsigned, float value, int by) {
    static float lanes[1024];
    const unsigned me = threadIdx.x;
    lanes[me] = value;
    __syncwarp();
    const float got = (me % 32) + by < 32 ? lanes[me + by] : value;
    __syncwarp();
    return got;
}
static void __threadfence() {}
static unsigned atomicInc(unsigned* at, unsigned most) {
    const unsigned old = *at;
    *at = old >= most ? 0 : old + 1;
    return old;
}
template <class T> static T __ldcg(const T* at) { return *at; }
"""
TABLE = 5


def compiled(folder: Path, name: str, signature: str, call: str, *defines: str) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.fail("this test compiles the kernels for the CPU: install g++")
    text = files("honestly.kernels").joinpath("passes", "kernels.cu").read_text(encoding="utf-8")
    head = "".join(f"#define {line}\n" for line in ("TYPE_FLOAT", f"TABLE {TABLE}", *defines))
    start = f'extern "C" void start(int blocks, int threads, {signature}) {{ const int grid[3] = {{blocks, 1, 1}}; '
    start += f"run(grid, threads, [&] {{ {name}({call}); }}); }}"
    code, made = folder / f"{name}.cpp", folder / f"{name}.so"
    code.write_text(f'#include "{EMULATE}"\n{MORE}\n{head}{text}\n{start}\n')
    subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", code, "-o", made], check=True)
    return ctypes.CDLL(str(made))


def table(parts: list[tuple[int, int]], columns: int) -> np.ndarray:
    """As `cuda_kernels._table` makes it, which needs a device."""
    rows: list[tuple[int, ...]] = []
    for index, (start, stop) in enumerate(parts):
        starts, first = range(start, stop, columns), len(rows)
        rows += [(at, min(stop, at + columns), index, first, len(starts)) for at in starts]
    return np.array(rows, np.int32)


def pointer(values: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


PARTS = [(0, 1), (1, 700), (700, 701), (701, 1900), (1900, 2000)]


@pytest.mark.parametrize("middle", [0, 1, 2])
def test_gram_by_part(middle: int, tmp_path: Path) -> None:
    K, n, threads = 5, 2000, 64
    rng = np.random.default_rng(middle)
    X, row = rng.normal(size=(K, n + 3)).astype(np.float32), rng.normal(size=n).astype(np.float32)
    signature = "float* x, float* middle, double* partial, double* result, unsigned* ended, int* table, int stride"
    call = "x, middle, partial, result, ended, table, stride"
    kernel = compiled(tmp_path, "gram", signature, call, f"ROWS {K}", f"THREADS {threads}", f"MIDDLE {middle}")
    what = table(PARTS, 4 * threads)
    pairs = K * (K + 1) // 2
    partial, result = np.full((len(what), pairs), np.nan), np.full((len(PARTS), pairs), np.nan)
    ended = np.zeros(len(PARTS), np.uint32)
    kernel.start(len(what), threads, *map(pointer, (X, row, partial, result, ended, what)), n + 3)
    three = np.sort(X[[0, K // 2, K - 1], :n], axis=0)[1]
    C = (X[:, :n] - (0 if middle == 0 else row if middle == 1 else three)).astype(np.float64)
    lower = np.tril_indices(K)
    for at, (start, stop) in enumerate(PARTS):
        expected = (C[:, start:stop] @ C[:, start:stop].T)[lower]
        np.testing.assert_allclose(result[at], expected, rtol=1e-4, atol=1e-3)
    assert not ended.any()


@pytest.mark.parametrize("group", [1, 2])
def test_mixtures_by_part(group: int, tmp_path: Path) -> None:
    K, n = 5, 8000
    rng = np.random.default_rng(3)
    X, W = rng.normal(size=(K, n)).astype(np.float32), rng.dirichlet(np.ones(K), size=len(PARTS)).astype(np.float32)
    signature = "float* x, float* weights, float* out, int* flag, int* table, int stride"
    call = "x, (const Weights*)weights, out, flag, table, stride"
    kernel = compiled(tmp_path, "mix_parts", signature, call, f"CLIENTS {K}", f"GROUP {group}")
    parts = [*PARTS[:-1], (1900, n)]  # the last part has whole blocks, which read groups of values
    what, out, flag = table(parts, 1024), np.full(n, np.nan, np.float32), np.zeros(1, np.int32)
    kernel.start(len(what), 256, *map(pointer, (X, W, out, flag, what)), n)
    for weights, (start, stop) in zip(W, parts, strict=True):
        np.testing.assert_allclose(out[start:stop], weights @ X[:, start:stop], rtol=1e-5, atol=1e-6)
    assert not flag[0]
    for column in (1500, 5000, n - 1):
        spoilt, flag[0] = X.copy(), 0
        spoilt[1, column] = np.inf
        kernel.start(len(what), 256, *map(pointer, (spoilt, W, out, flag, what)), n)
        assert flag[0]


@pytest.mark.parametrize(("group", "n"), [(1, 3001), (2, 3001), (2, 4096), (2, 7)])
def test_a_mixture_of_whole_rows(group: int, n: int, tmp_path: Path) -> None:
    K, stride = 5, n + n % 2
    rng = np.random.default_rng(n)
    X, weights = rng.normal(size=(K, stride)).astype(np.float32), rng.dirichlet(np.ones(K)).astype(np.float32)
    signature = "float* x, float* weights, float* out, int* flag, int n, int stride"
    call = "x, *(const Weights*)weights, out, flag, n, stride"
    kernel = compiled(tmp_path, "mix", signature, call, f"CLIENTS {K}", f"GROUP {group}")
    out, flag = np.full(n + 1, np.nan, np.float32), np.zeros(1, np.int32)
    kernel.start(-(-n // 1024), 256, *map(pointer, (X, weights, out, flag)), n, stride)
    np.testing.assert_allclose(out[:n], weights @ X[:, :n], rtol=1e-5, atol=1e-6)
    assert np.isnan(out[n])  # nothing is written beyond the end
    assert not flag[0]


def test_the_mean_of_the_values_nearest_to_the_median(tmp_path: Path) -> None:
    K, n = 5, 300
    X = np.random.default_rng(0).integers(-4, 5, size=(K, n)).astype(np.float32)  # with many copies
    sort = " ".join(f"SMALLER({i}, {j})" for i in range(K) for j in range(i + 1, K))
    signature, call = "float* x, int* rows, float* out, int* flag, int n", "x, *(const Chosen*)rows, out, flag, n, n"
    wanted = f"WANTED {', '.join(map(str, range(K)))}"
    kernel = compiled(tmp_path, "rank", signature, call, f"RANKED {K}", f"COMPARATORS {sort}", wanted, "NEAREST 3")
    rows, out, flag = np.arange(K, dtype=np.int32), np.full(n, np.nan, np.float32), np.zeros(1, np.int32)
    kernel.start(-(-n // 256), 256, *map(pointer, (X, rows, out, flag)), n)
    np.testing.assert_allclose(out, mean_nearest_to_median(np.sort(X, axis=0), 3, np), rtol=1e-6)
    assert not flag[0]
