"""The passes on the CPU, by NumPy and compiled, on every kind of source, against plain formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import honestly as hn
from honestly.engine.passes import compiled, passes_over
from honestly.engine.passes.host import HostPasses
from honestly.engine.passes.plain import PlainPasses
from honestly.rules._lib.windows import mean_nearest_to_median
from honestly.sources import Source, open_source

SIZES = {"a.weight": (40, 50), "a.bias": (50,), "b.weight": (3000,), "b.running_mean": (7,)}
KINDS = ["float16", "bfloat16", "float32", "float64"]
EPSILON = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-12}


def states(K: int, kind: str, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    dtype = getattr(torch, kind)
    return [{name: torch.from_numpy(rng.normal(size=s)).to(dtype) for name, s in SIZES.items()} for _ in range(K)]


def in_memory(rows: list[dict[str, torch.Tensor]], tmp_path: Path) -> Any:
    return rows


def in_pieces(rows: list[dict[str, torch.Tensor]], tmp_path: Path) -> Any:
    """Arrays that do not lie in one piece."""
    return [{name: torch.stack([x, x], dim=-1)[..., 0] for name, x in row.items()} for row in rows]


def in_files(rows: list[dict[str, torch.Tensor]], tmp_path: Path) -> Any:
    paths = [tmp_path / f"{k}.safetensors" for k in range(len(rows))]
    for row, path in zip(rows, paths, strict=True):
        save_file(row, path)
    return paths


def exact(rows: list[dict[str, torch.Tensor]], source: Source) -> list[np.ndarray]:
    """(K, columns) of each layer in float64."""
    values = [[row[leaf.name].double().numpy().ravel() for leaf in source.leaves] for row in rows]
    return [
        np.stack([np.concatenate([row[i][start:stop] for i, start, stop in layer.spans]) for row in values])
        for layer in source.layers
    ]


@pytest.fixture(params=[in_memory, in_pieces, in_files])
def given(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param


@pytest.mark.parametrize("kind", KINDS)
def test_every_pass_by_layer(way: str, given: Callable[..., Any], kind: str, tmp_path: Path) -> None:
    K = 11
    rows = states(K, kind)
    source = open_source(given(rows, tmp_path))
    layers, passes = exact(rows, source), passes_over(source)
    assert isinstance(passes, HostPasses)
    assert len(layers) == len(SIZES)
    grams = passes.gram(range(K), 4)
    for G, X in zip(grams, layers, strict=True):
        C = X - X[4]
        np.testing.assert_allclose(G, C @ C.T, rtol=0, atol=1e-6 * (C @ C.T).max() if kind != "float64" else 1e-9)
        np.testing.assert_array_equal(G, G.T)
    few = passes.gram([0, 5], 4)
    if way == "compiled":
        np.testing.assert_array_equal(few, grams[:, [0, 5]][:, :, [0, 5]])
    else:  # a BLAS may add up in another order where there are fewer rows
        np.testing.assert_allclose(few, grams[:, [0, 5]][:, :, [0, 5]], rtol=0, atol=1e-6 * grams.max())
    a = np.random.default_rng(1).dirichlet(np.ones(K), size=2)
    found, norms = passes.residuals(a, range(K), 4, None)
    again, _ = passes.residuals(a, range(K), 4, norms)
    np.testing.assert_array_equal(found, again)
    for i, X in enumerate(layers):
        wanted = np.stack([((X - row @ X) ** 2).sum(axis=1) for row in a])
        np.testing.assert_allclose(found[:, i], wanted, rtol=1e-4, atol=1e-5 * wanted.max())
        np.testing.assert_allclose(norms[i], ((X - X[4]) ** 2).sum(axis=1), rtol=1e-5)
    weights = np.random.default_rng(2).dirichlet(np.ones(K), size=len(layers))
    weights[1, 3:] = 0
    for table in (weights, weights[0]):
        values, fine = passes.mix(table, range(K))
        assert fine()
        for leaf, value in enumerate(values):
            (i,) = (j for j, layer in enumerate(source.layers) if layer.spans[0][0] == leaf)
            wanted = np.atleast_2d(table)[i if table.ndim == 2 else 0] @ layers[i]
            np.testing.assert_allclose(_double(value, kind), wanted, rtol=EPSILON[kind], atol=EPSILON[kind])
    for rule, reduced in ((hn.Median(), np.median), (hn.TrimmedMean(trim=0.2), _trimmed)):
        for mixing in (None, 0.5 * np.eye(K)[:7] + 0.5 / K):
            values, fine = passes.reduce(rule, mixing, range(K))
            assert fine()
            for leaf, value in enumerate(values):
                (i,) = (j for j, layer in enumerate(source.layers) if layer.spans[0][0] == leaf)
                wanted = reduced(layers[i] if mixing is None else mixing @ layers[i], axis=0)
                np.testing.assert_allclose(_double(value, kind), wanted, rtol=EPSILON[kind], atol=EPSILON[kind])
    values, fine = passes.reduce(hn.Meamed(f=3), None, range(K))
    assert fine()
    for leaf, value in enumerate(values):
        (i,) = (j for j, layer in enumerate(source.layers) if layer.spans[0][0] == leaf)
        wanted = mean_nearest_to_median(np.sort(layers[i], axis=0), K - 3, np)
        np.testing.assert_allclose(_double(value, kind), wanted, rtol=EPSILON[kind], atol=EPSILON[kind])
    source.close()


def _trimmed(values: np.ndarray, axis: int) -> np.ndarray:
    g = int(0.2 * len(values))
    return np.sort(values, axis=axis)[g : len(values) - g].mean(axis=axis)


def _double(value: np.ndarray, kind: str) -> np.ndarray:
    if kind == "bfloat16":
        return (value.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return value.astype(np.float64)


def test_clients_of_another_width_are_not_rounded(way: str, tmp_path: Path) -> None:
    rows = states(7, "bfloat16")
    rows[3] = states(1, "float32", seed=9)[0]
    for given in (in_memory, in_files):
        source = open_source(given(rows, tmp_path))
        for G, X in zip(passes_over(source).gram(range(7), 0), exact(rows, source), strict=True):
            C = X - X[0]
            np.testing.assert_allclose(G, C @ C.T, rtol=0, atol=1e-6 * (C @ C.T).max())
        source.close()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_values_that_cannot_be_used_are_told_by_the_result(way: str, bad: float) -> None:
    X = np.random.default_rng(0).normal(size=(5, 4000)).astype(np.float32)
    X[3, 3999] = bad
    passes = passes_over(open_source(X))
    assert not passes.mix(np.full(5, 0.2), range(5))[1]()
    assert not passes.reduce(hn.Median(), None, range(5))[1]()
    assert passes.mix(np.full(4, 0.25), [0, 1, 2, 4])[1]()


def test_bits_do_not_depend_on_threads_nor_on_the_place(
    way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files and memory are cut alike only by NumPy; each gives the same bits with any number of threads."""
    rows = states(9, "float32")
    for given in (in_memory, in_files):
        found: list[Any] = []
        for threads in ("1", "2", "5"):
            monkeypatch.setenv("HONESTLY_THREADS", threads)
            source = open_source(given(rows, tmp_path))
            passes = passes_over(source)
            values, _ = passes.mix(np.full(9, 1 / 9), range(9))
            found.append((passes.gram(range(9), 2), np.concatenate([np.asarray(v) for v in values])))
            source.close()
        for gram, value in found[1:]:
            np.testing.assert_array_equal(gram, found[0][0])
            np.testing.assert_array_equal(value, found[0][1])


@pytest.mark.parametrize("order", ["C", "F"])
def test_matrices_however_they_lie(way: str, order: Any) -> None:
    X = np.asarray(np.random.default_rng(0).normal(size=(6, 5000)), order=order)
    for values in (X, X.astype(">f8"), X[::-1], X.astype(np.float32)[:, ::2], X.astype(np.float16)):
        wide = values.astype(np.float64)
        G = passes_over(open_source(values)).gram(range(6), None)[0]
        np.testing.assert_allclose(G, wide @ wide.T, rtol=0, atol=1e-6 * (wide @ wide.T).max())
        np.testing.assert_allclose(hn.aggregate(values, "median").value, np.median(wide, axis=0), atol=1e-3)


def test_small_updates_never_ask_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise AssertionError("a compiler was asked for")

    monkeypatch.setattr(compiled.program, "available", fail)
    hn.aggregate(np.random.default_rng(0).normal(size=(10, 1000)))
    with pytest.raises(AssertionError, match="a compiler was asked for"):
        hn.aggregate(np.random.default_rng(0).normal(size=(11, 100_000)))


def test_the_median_of_two_large_values_does_not_overflow_in_a_pass() -> None:
    """The rule's own `reduce` is what a pass calls, so its guard against overflow works on a CPU, too."""
    source = open_source(np.full((2, 100), 3e38, dtype=np.float32))
    values, _ = PlainPasses(source).reduce(hn.Median(), None, [0, 1])
    np.testing.assert_array_equal(values[0], np.full(100, 3e38, dtype=np.float32))
