"""Every pass by layer, on the host and on (emulated) accelerators, for every kind of source, against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Library
from safetensors.numpy import save_file

from honestly import arrays
from honestly.engine.passes import device_columns, passes_over
from honestly.engine.passes.parts import Part, cuts, parts_of
from honestly.engine.passes.plan import blocks
from honestly.sources import Source, open_source

K = 7
SIZES = {"conv.weight": 3000, "conv.bias": 5, "bn.running_var": 5, "head.weight": 700, "head.bias": 1, "x": 2100}


@pytest.fixture
def X() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(K, sum(SIZES.values()))).astype(np.float32)


def tensors(row: np.ndarray) -> dict[str, np.ndarray]:
    ends = np.cumsum([0, *SIZES.values()])
    return {name: row[ends[i] : ends[i + 1]] for i, name in enumerate(SIZES)}


def matrix(X: np.ndarray, tmp_path: Path) -> Source:
    return open_source(X, layers=SIZES)


def flat_rows(X: np.ndarray, tmp_path: Path) -> Source:
    return open_source(list(X), layers=SIZES)


def state_dicts(X: np.ndarray, tmp_path: Path) -> Source:
    return open_source([tensors(row) for row in X])


def files(X: np.ndarray, tmp_path: Path) -> Source:
    paths = [tmp_path / f"{k}.safetensors" for k in range(len(X))]
    for path, row in zip(paths, X, strict=True):
        save_file(tensors(row), path)
    return open_source(paths)


def through_torch(X: np.ndarray, tmp_path: Path) -> Source:
    from honestly.sources.checkpoints.device import OnDevice

    return OnDevice(files(X, tmp_path), "cpu")  # type: ignore[arg-type]


def check(source: Source, X: np.ndarray, read: Callable[[Any], np.ndarray] = np.asarray) -> None:
    """All passes of a source of these rows, or a permutation of their columns, against loops over its layers."""
    names = {layer.name: layer for layer in source.layers}
    assert len(names) == len(SIZES)
    assert [layer.name for layer in source.layers if layer.follows] == ["bn.running_var"]
    by_name = [tensors(row) for row in X.astype(np.float64)]
    keys = {name: name if name in SIZES else f"{name}.weight" for name in names}
    passes = passes_over(source)
    chosen, centre = [0, 2, 3, 6], 5
    rng = np.random.default_rng(1)
    a = rng.dirichlet(np.ones(4), size=2)
    a[1, 2] = 0
    grams = passes.gram(chosen, centre)
    apart, norms = passes.residuals(a, chosen, centre, None)
    again, same = passes.residuals(a[:1], chosen, centre, norms)
    assert grams.shape == (len(SIZES), 4, 4)
    assert apart.shape == (2, len(SIZES), 4)
    for at, layer in enumerate(source.layers):
        C = np.stack([by_name[k][keys[layer.name]] - by_name[centre][keys[layer.name]] for k in chosen])
        np.testing.assert_allclose(grams[at], C @ C.T, rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(grams[at], grams[at].T)
        np.testing.assert_allclose(passes.gram(chosen, centre, [at])[at], grams[at], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(norms[at], (C**2).sum(1), rtol=1e-5)
        for m in range(2):
            expected = ((C - a[m] @ C) ** 2).sum(1)
            np.testing.assert_allclose(apart[m, at], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(passes.gram(chosen, centre, [1, 4])[[1, 4]], grams[[1, 4]])
    np.testing.assert_allclose(again[0], apart[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(same, norms)
    weights = rng.dirichlet(np.ones(4), size=len(SIZES))
    weights[0, 1] = 0
    for rows in (weights, np.repeat(weights[:1], len(SIZES), axis=0), weights[0]):
        values, fine = passes.mix(rows, chosen)
        assert fine()
        for at, layer in enumerate(source.layers):
            mixture = (rows[at] if rows.ndim == 2 else rows) @ np.stack([by_name[k][keys[layer.name]] for k in chosen])
            found = np.concatenate([read(values[leaf][start:stop]) for leaf, start, stop in layer.spans])
            np.testing.assert_allclose(found, mixture, rtol=1e-5, atol=1e-5)
    judged = np.concatenate([np.stack([row[n] for row in by_name]) for n in SIZES if n != "bn.running_var"], axis=1)
    counts = passes.sign_counts(chosen, None, None)
    np.testing.assert_array_equal(counts[:, 0], (judged[chosen] > 0).sum(1))
    assert (counts.sum(axis=1) == judged.shape[1]).all()


@pytest.mark.parametrize("source", [matrix, flat_rows, state_dicts, files, through_torch], ids=lambda f: f.__name__)
def test_on_the_host(source: Callable[..., Source], X: np.ndarray, tmp_path: Path) -> None:
    opened = source(X, tmp_path)
    try:
        check(opened, X)
    finally:
        opened.close()


@pytest.mark.parametrize("library", ["torch", "jax", "array_api_strict"])
@pytest.mark.parametrize("block", [500, 1 << 20], ids=["small blocks", "one block"])
@pytest.mark.parametrize("kind", ["matrix", "state dicts"])
def test_on_an_accelerator(library: str, block: int, kind: str, X: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "on_host", lambda x: isinstance(x, np.ndarray | np.generic))
    monkeypatch.setattr(device_columns, "BLOCK", block)
    found = Library(library)
    if kind == "matrix":
        source = open_source(found.array(X), layers=SIZES)
    else:
        source = open_source([{name: found.array(x) for name, x in tensors(row).items()} for row in X])
    check(source, X, found.numpy)


def test_parts_of_blocks_that_cut_layers() -> None:
    source = open_source(np.zeros((2, 20), np.float32), layers=[3, 9, 1, 7])
    bounds = cuts(source.layers)
    found = [parts_of(block, bounds) for block in blocks(source.leaves, 8)]
    assert found == [
        [Part(0, 3, 0), Part(3, 8, 1)],
        [Part(0, 4, 1), Part(4, 5, 2), Part(5, 8, 3)],
        [Part(0, 4, 3)],
    ]


def test_a_fault_spoils_its_own_layer_only(X: np.ndarray, tmp_path: Path) -> None:
    X[2, 10] = np.nan
    grams = passes_over(matrix(X, tmp_path)).gram(range(K), None)
    assert np.isnan(grams[0, 2]).all()
    assert np.isfinite(np.delete(np.delete(grams[0], 2, 0), 2, 1)).all()
    assert np.isfinite(grams[1:]).all()


def test_sums_do_not_depend_on_the_number_of_threads(
    X: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = np.tile(X, (1, 40))
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("HONESTLY_THREADS", threads)
        found.append(passes_over(open_source(wide, layers=list(SIZES.values()) * 40)).gram(range(K), 1))
    np.testing.assert_array_equal(*found)
