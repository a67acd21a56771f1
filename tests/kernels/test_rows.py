"""Each pass of rows.c against plain formulas in float64, for every kind of values, also as compiled for less able
processors."""

from __future__ import annotations

import ctypes
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiler import PROCESSORS, needs_compiler, use_as_compiled_for

from honestly.arrays import narrow, widen
from honestly.engine.passes.networks import sorting_network
from honestly.engine.passes.ranking import steps_of
from honestly.kernels import rows as program
from honestly.kernels.rows import KINDS, PROGRAM, RUN, CompiledNetwork, Places
from honestly.rules._lib.windows import mean_nearest_to_median

pytestmark = needs_compiler
LIMITS = (1e17, 1e70)
#: What each kind of values is right to.
EPSILON = {"float16": 1e-3, "uint16": 8e-3, "float32": 3e-7, "float64": 1e-14}


@pytest.fixture(params=PROCESSORS)
def processor(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program as compiled for this processor, and for ones without AVX2, FMA or conversions."""
    use_as_compiled_for(request.param, PROGRAM, tmp_path, monkeypatch)
    return request.param


def places(arrays: list[list[np.ndarray]]) -> Places:
    """Of tensors by rows."""
    found = np.array([[program.place(x) for x in row] for row in arrays], np.int64)
    return Places(np.ascontiguousarray(found[..., 0]), np.ascontiguousarray(found[..., 1].astype(np.int8)))


def stored(values: np.ndarray, kind: str) -> np.ndarray:
    out = np.empty(values.shape, kind)
    narrow(np.asarray(values, np.float64 if kind == "float64" else np.float32), out)
    return out


def exact(values: np.ndarray) -> np.ndarray:
    out = np.empty(values.shape, np.float64)
    widen(values, out)
    return out


def tensors(n: int, kind: str, sizes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [stored(rng.normal(size=(n, size)), kind) for size in sizes]


def cut(sizes: tuple[int, ...], kind: str, columns: int, layered: bool) -> program.Cut:
    runs = [(i, 0, size, kind == "float64") for i, size in enumerate(sizes)]
    return program.cut_into([[run] for run in runs] if layered else [runs], columns)


@pytest.mark.parametrize("kind", EPSILON)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 20, 21, 43])
def test_gram(processor: str, n: int, kind: str) -> None:
    sizes = (1, 3000, 17, 9 * RUN + 5)
    found = tensors(n, kind, sizes)
    rows = places([list(x) for x in found])
    middle = places([[x[n // 2]] for x in found])
    for centre, columns in itertools.product((None, middle), (500, 16 * RUN)):
        one, three = (program.gram(rows, centre, cut(sizes, kind, columns, True), 4, w) for w in (1, 3))
        np.testing.assert_array_equal(one, three)
        for G, x in zip(one, found, strict=True):
            C = exact(x) - (0 if centre is None else exact(x[n // 2]))
            wanted = C @ C.T
            scale = 1e-14 if kind == "float64" else 5e-7
            np.testing.assert_allclose(np.tril(G), np.tril(wanted), rtol=0, atol=scale * (1 + wanted.max()))
        together = program.gram(rows, centre, cut(sizes, kind, columns, False), 1, 2)[0]
        np.testing.assert_allclose(together, one.sum(axis=0), rtol=1e-5, atol=1e-3)


def test_equal_rows_have_equal_products(processor: str) -> None:
    x = np.random.default_rng(0).normal(size=70_000).astype(np.float32)
    found = [np.stack([x] * 13)]
    G = program.gram(places([list(found[0])]), None, cut((len(x),), "float32", 9000, False), 1, 2)[0]
    assert len(np.unique(G[np.tril_indices(13)])) == 1


@pytest.mark.parametrize("kind", EPSILON)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 20, 100])
def test_mix(processor: str, n: int, kind: str) -> None:
    sizes = (5, 2500, 9 * RUN + 5)
    found = tensors(n, kind, sizes)
    weights = np.random.default_rng(1).random((3, n))
    weights[:, ::3] = 0
    weights[2] = 0
    found[1][0] = np.frombuffer(b"\xff" * 8, found[1].dtype)[0]  # NaN, of weight 0: not read
    outs = [np.empty(size, found[0].dtype) for size in sizes]
    rows, to = places([list(x) for x in found]), places([[x] for x in outs])
    whole = [np.empty_like(out) for out in outs]
    assert program.mix(weights, rows, places([[x] for x in whole]), cut(sizes, kind, 16 * RUN, True), LIMITS, 1)
    assert program.mix(weights, rows, to, cut(sizes, kind, 700, True), LIMITS, 2)
    for out, other in zip(outs, whole, strict=True):
        np.testing.assert_array_equal(out, other)
    for row, x, out in zip(weights, found, outs, strict=True):
        wanted = row[row > 0] @ exact(x)[row > 0]
        np.testing.assert_allclose(exact(out), wanted, rtol=2 * EPSILON[kind], atol=20 * EPSILON[kind])
    weights[1] = 1
    assert not program.mix(weights, rows, to, cut(sizes, kind, 700, True), LIMITS, 2)


@pytest.mark.parametrize("kind", EPSILON)
@pytest.mark.parametrize("with_centre", [False, True])
def test_residuals(processor: str, kind: str, with_centre: bool) -> None:
    n, sizes = 37, (40, 3000)
    found = tensors(n, kind, sizes)
    a = np.random.default_rng(1).random((2, n))
    a[0, 5:] = 0
    a /= a.sum(axis=1, keepdims=True)
    centre = places([[x[3]] for x in found]) if with_centre else None
    norms, products, means = program.residuals(
        a, places([list(x) for x in found]), centre, cut(sizes, kind, 900, True), 2, True, 2
    )
    for i, x in enumerate(found):
        C = exact(x) - (exact(x[3]) if with_centre else 0)
        np.testing.assert_allclose(norms[i], (C**2).sum(axis=1), rtol=1e-5)
        np.testing.assert_allclose(products[i], a @ C @ C.T, rtol=0, atol=1e-6 * (C**2).sum(axis=1).max())
        np.testing.assert_allclose(means[i], ((a @ C) ** 2).sum(axis=1), rtol=1e-4)


@pytest.mark.parametrize("kind", EPSILON)
def test_rank(processor: str, kind: str) -> None:
    sizes = (70, 9 * RUN + 1)
    found = tensors(3, kind, sizes)
    outs = [np.empty(size, found[0].dtype) for size in sizes]
    rows, to = places([list(x) for x in found]), places([[x] for x in outs])
    # the smaller of the first two in row 3, then the larger of it and the last in its place
    network = CompiledNetwork(np.array([(1, 0, 1, 3), (0, 3, 2, 3)], np.int32), np.array([3], np.int32), 1)
    whole = [np.empty_like(out) for out in outs]
    long = cut(sizes, kind, 16 * RUN, False)
    assert program.rank(network, None, rows, places([[x] for x in whole]), long, LIMITS, 1)
    assert program.rank(network, None, rows, to, cut(sizes, kind, 700, False), LIMITS, 2)
    for out, other in zip(outs, whole, strict=True):
        np.testing.assert_array_equal(out, other)
    for x, out in zip(found, outs, strict=True):
        a, b, c = exact(x)
        np.testing.assert_array_equal(exact(out), np.maximum(np.minimum(a, b), c))
    mean = CompiledNetwork(np.zeros((0, 4), np.int32), np.arange(2, dtype=np.int32), 0)
    mixing = np.array([[1.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    assert program.rank(mean, mixing, rows, to, cut(sizes, kind, 700, False), LIMITS, 2)
    for x, out in zip(found, outs, strict=True):
        wanted = (mixing @ exact(x)).mean(axis=0)
        np.testing.assert_allclose(exact(out), wanted, rtol=2 * EPSILON[kind], atol=8 * EPSILON[kind])
    found[1][2, 5] = np.frombuffer(b"\xff" * 8, found[1].dtype)[0]
    assert not program.rank(network, None, rows, to, cut(sizes, kind, 700, False), LIMITS, 2)


@pytest.mark.parametrize("kind", EPSILON)
@pytest.mark.parametrize("n", [3, 4, 12, 20, 43])
def test_the_mean_of_the_values_nearest_to_the_median(processor: str, n: int, kind: str) -> None:
    """To the last bit what NumPy makes of the same values, ties included, whatever the threads."""
    sizes = (70, 2 * RUN + 1)
    found = tensors(n, kind, sizes)
    found[1][:, ::5] = stored(np.round(exact(found[1][:, ::5])), kind)
    found[1][:, 1] = found[1][0, 1]
    steps, wanted, extra = steps_of(sorting_network(n, 0, n), n)
    rows, dtype = places([list(x) for x in found]), np.float64 if kind == "float64" else np.float32
    long, short = (cut(sizes, kind, columns, False) for columns in (16 * RUN, 700))
    for nearest in {1, 2, n // 2, n - 2, n} - {0}:
        network = CompiledNetwork(np.array(steps, np.int32), np.array(wanted, np.int32), extra, nearest)

        def run(work: program.Cut, workers: int, network: CompiledNetwork = network) -> tuple[bool, list[np.ndarray]]:
            outs = [np.empty(size, found[0].dtype) for size in sizes]
            return program.rank(network, None, rows, places([[x] for x in outs]), work, LIMITS, workers), outs

        fine, outs = run(long, 1)
        assert fine
        for x, out, other in zip(found, outs, run(short, 3)[1], strict=True):
            np.testing.assert_array_equal(out, other)
            ranked = np.sort(exact(x).astype(dtype), axis=0)
            np.testing.assert_array_equal(out, stored(mean_nearest_to_median(ranked, nearest, np), kind))
        for bad in (np.nan, np.inf, -np.inf):
            kept = found[1][n // 2, 9].copy()
            found[1][n // 2, 9] = stored(np.array([bad]), kind)[0]
            fine, others = run(short, 3)
            assert not fine
            np.testing.assert_array_equal(np.delete(others[1], 9), np.delete(outs[1], 9))
            found[1][n // 2, 9] = kept


@pytest.mark.parametrize("kind", ["float16", "uint16"])
def test_every_narrow_value_is_read_and_written_as_it_is(processor: str, kind: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(kind)
    every = every[np.isfinite(exact(every))]
    out = np.empty_like(every)
    program.mix(np.ones((1, 1)), places([[every]]), places([[out]]), cut((len(every),), kind, 5000, False), LIMITS, 1)
    np.testing.assert_array_equal(out.view(np.uint16) & 0x7FFF, every.view(np.uint16) & 0x7FFF)


@pytest.mark.parametrize("kind", ["float16", "uint16"])
def test_wide_values_are_rounded_to_the_nearest_and_ties_to_even(processor: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    wide = np.concatenate([
        rng.normal(size=5000), 1e-6 * rng.normal(size=5000), 1e-8 * rng.normal(size=500), 7e4 * rng.normal(size=500),
        1 + np.arange(4096) * 2.0**-12, [65519.9, 65520.0, 65504.0, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 0.0],
    ]).astype(np.float32)  # fmt: skip
    out, wanted = np.empty(len(wide), kind), np.empty(len(wide), kind)
    program.mix(np.ones((1, 1)), places([[wide]]), places([[out]]), cut((len(wide),), "float32", 999, False), LIMITS, 1)
    narrow(wide, wanted)
    np.testing.assert_array_equal(out, wanted)


def test_only_arrays_that_can_be_read_in_place_have_a_place() -> None:
    x = np.arange(12, dtype=np.float32)
    assert program.place(x) == (x.ctypes.data, KINDS[x.dtype])
    assert program.place(x[::2]) is None
    assert program.place(x.astype(">f4")) is None
    assert program.place(x.astype(np.int32)) is None
    assert program.place(np.frombuffer(b"\0" * 9, np.float32, 2, 1)) is None  # at an odd address


def test_fewer_threads_than_requested_do_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tensors(5, "float32", (50_000,))
    rows, work = places([list(found[0])]), cut((50_000,), "float32", RUN, False)
    expected = program.gram(rows, None, work, 1, 1)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    np.testing.assert_array_equal(program.gram(rows, None, work, 1, 8), expected)


def test_items_that_are_added_up_in_several_turns_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tensors(5, "float32", (50_000,))
    rows, work = places([list(found[0])]), cut((50_000,), "float32", RUN, False)
    expected = program.gram(rows, None, work, 1, 1)
    monkeypatch.setattr(program, "KEPT", 8 * 25 * 3)
    np.testing.assert_array_equal(program.gram(rows, None, work, 1, 2), expected)


def test_no_memory_is_an_error_and_not_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __getitem__(self, name: str) -> Any:
            return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(lambda job, most: -1)

    monkeypatch.setattr(PROGRAM, "library", Full)
    found = tensors(5, "float32", (5000,))
    with pytest.raises(MemoryError, match="no memory for the scratch of gram over 5 rows"):
        program.gram(places([list(found[0])]), None, cut((5000,), "float32", RUN, False), 1, 2)
