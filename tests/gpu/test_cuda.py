"""The engine on a CUDA device: torch (fused kernels and the plain way), CuPy and JAX against float64 on the host."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import honestly as hn
from honestly.engine.geometry import measure_grams
from honestly.engine.passes import BETWEEN, fused, passes_over
from honestly.engine.passes.parts import Part
from honestly.engine.screening import Screen
from honestly.rules.rule import squared_distances
from honestly.sources import open_source

pytestmark = pytest.mark.gpu
RULES = [
    hn.Mean(), hn.Bayesian(), hn.Bayesian(variant="paper"), hn.Krum(f=4), hn.GeometricMedian(), hn.Median(),
    hn.TrimmedMean(trim=0.2), hn.Bulyan(f=4), hn.Meamed(f=5),
]  # fmt: skip


@pytest.fixture(autouse=True)
def device() -> None:
    if not torch.cuda.is_available():
        pytest.fail("these tests need a CUDA device; they are left out by `-m 'not gpu'`")


def federation(K: int = 20, d: int = 100_003, M: int = 5) -> np.ndarray:
    rng = np.random.default_rng(K + d)
    X = rng.normal(size=(K, d)) + 0.5 * rng.normal(size=d)
    X[K - M :] *= -4
    return X


def on_device(library: str, X: np.ndarray, dtype: str) -> Any:
    if library == "torch":
        return torch.tensor(X, device="cuda", dtype=getattr(torch, dtype))
    if library == "cupy":
        return pytest.importorskip("cupy").asarray(X.astype(dtype))
    return pytest.importorskip("jax").numpy.asarray(X, dtype=dtype)


def back(x: Any) -> np.ndarray:
    if hasattr(x, "cpu"):
        return x.cpu().double().numpy()
    return np.asarray(x.get() if hasattr(x, "get") else x, dtype=np.float64)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(
    ("library", "dtype"),
    [("torch", "float32"), ("torch", "bfloat16"), ("torch", "float16"), ("torch", "float64"), ("cupy", "float32"),
     ("cupy", "float64"), ("jax", "float32"), ("jax", "bfloat16")],
)  # fmt: skip
def test_rules_on_the_device(library: str, dtype: str, rule: hn.Rule) -> None:
    X = on_device(library, federation(), dtype)
    out, expected = hn.aggregate(X, rule), hn.aggregate(back(X), rule)
    assert type(out.value) is type(X)
    assert out.value.dtype == X.dtype
    assert str(getattr(out.value, "device", "")) == str(getattr(X, "device", ""))
    width = {"float64": 1e-9, "float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype]
    np.testing.assert_allclose(back(out.value), expected.value, rtol=0, atol=width * 3)


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
@pytest.mark.parametrize("K", [2, 3, 16, 20, 33, 64, 100])
def test_distances_have_no_tf32_error(K: int, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain:
        monkeypatch.setattr(fused, "_kernels", lambda: None)
    rng = np.random.default_rng(K)
    W = (1e3 * rng.normal(size=50_001) + 1e-3 * rng.normal(size=(K, 50_001))).astype(np.float32)
    source = open_source(torch.tensor(W, device="cuda"))
    G = measure_grams(Screen(source, passes_over(source))).gram
    exact = W.astype(np.float64)
    true = np.stack([((exact - row) ** 2).sum(1) for row in exact])
    apart = true > 0
    assert np.max(np.abs(squared_distances(G) - true)[apart] / true[apart]) < 1e-4


def test_faults_on_the_device() -> None:
    X = torch.tensor(federation(), device="cuda", dtype=torch.float32)
    X[1, 99_000], X[3, 5], X[7, 50_000] = torch.nan, torch.inf, 1e30
    for rule in ("mean", "bayesian", "median"):
        out = hn.aggregate(X, rule)
        assert out.excluded == (1, 3, 7)
        assert "NaN" in out.reasons[1]
        assert bool(torch.isfinite(out.value).all())


@pytest.mark.parametrize("bad", [(0,), (10,), (19,), (0, 19), (0, 10, 19)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1e12])
def test_liars_among_the_three_clients_that_make_the_centre(bad: tuple[int, ...], value: float) -> None:
    """Their median is the first centre: it must hold with one liar, and be noticed to be wrong with two."""
    X = (1e3 * np.random.default_rng(1).normal(size=20_000) + 1e-3 * federation(d=20_000, M=0)).astype(np.float32)
    X[list(bad)] = value
    source = open_source(torch.tensor(X, device="cuda"))
    survey = Screen(source, passes_over(source))
    G = measure_grams(survey).gram
    assert survey.usable == [k for k in range(20) if k not in bad or value == 1e12]
    honest = [j for j, k in enumerate(survey.usable) if k not in bad]
    exact = X[[k for k in range(20) if k not in bad]].astype(np.float64)
    true = np.stack([((exact - row) ** 2).sum(1) for row in exact])
    found = squared_distances(G)[np.ix_(honest, honest)]
    assert np.max(np.abs(found - true)[true > 0] / true[true > 0]) < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("K", [2, 3, 7, 20])
@pytest.mark.parametrize("n", [4096, 4099, 300_001])
def test_gram_about_every_kind_of_centre(K: int, n: int, dtype: str) -> None:
    X = torch.randn((K, n + 5), device="cuda").to(getattr(torch, dtype))[:, 3 : n + 3]
    row = torch.randn((1, n), device="cuda").to(X.dtype)
    three = torch.stack([X[0], X[K // 2], X[K - 1]]).double().sort(0).values[1]
    for middle, centre in ((None, 0), (row, row.double()), (BETWEEN, three)):
        C = X.double() - centre
        (found,) = fused.gram(X, middle, [Part(0, n, 0)])
        np.testing.assert_allclose(found, (C @ C.T).cpu().numpy(), rtol=1e-5, atol=1e-4 * n)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("K", [2, 7, 20])
def test_sums_and_mixtures_of_many_layers_from_one_launch(K: int, dtype: str) -> None:
    ends = np.unique(np.concatenate([[0, 1, 2, 700, 100_003], np.random.default_rng(K).integers(3, 100_000, 58)]))
    parts = [Part(int(a), int(b), i) for i, (a, b) in enumerate(itertools.pairwise(ends))]
    X = torch.randn((K, 100_003), device="cuda").to(getattr(torch, dtype))
    grams = fused.gram(X, BETWEEN, parts)
    C = X.double() - torch.stack([X[0], X[K // 2], X[K - 1]]).double().sort(0).values[1]
    weights = np.random.default_rng(1).dirichlet(np.ones(K), size=len(parts))
    mixed = fused.mix(X, weights, parts, fused.flag(X))
    for (start, stop, at), gram in zip(parts, grams, strict=True):
        piece = C[:, start:stop]
        np.testing.assert_allclose(gram, (piece @ piece.T).cpu().numpy(), rtol=1e-4, atol=1e-3 * (stop - start))
        expected = torch.tensor(weights[at], device="cuda") @ X[:, start:stop].double()
        torch.testing.assert_close(mixed[start:stop].double(), expected, rtol=1e-4, atol=1e-5)


def test_layers_on_the_device_and_on_the_host_agree() -> None:
    X = federation(K=20, d=60_000, M=4)
    sizes = [5000] * 10 + [64] * 50 + [6800]
    for rule in ("bayesian", "geometric_median"):
        found = hn.aggregate(torch.tensor(X, device="cuda", dtype=torch.float32), rule, layers=sizes)
        expected = hn.aggregate(X.astype(np.float32), rule, layers=sizes)
        np.testing.assert_allclose(found.weights, expected.weights, atol=1e-4)
        np.testing.assert_allclose(found.value.cpu().numpy(), expected.value, atol=1e-4)


def test_state_dicts_on_the_device_and_one_on_the_host() -> None:
    X = federation(K=9, d=5000, M=2)
    states = [{"w": torch.tensor(x[:4000].reshape(40, 100), device="cuda", dtype=torch.float32),
               "b": torch.tensor(x[4000:], device="cuda", dtype=torch.float32),
               "n": torch.tensor(7, device="cuda")} for x in X]  # fmt: skip
    states[3] = {name: value.cpu() for name, value in states[3].items()}
    out = hn.aggregate(states)
    assert out.excluded == ()
    assert out.value["n"].dtype == torch.int64
    assert out.value["w"].is_cuda
    expected = hn.aggregate([{name: tensor.cpu().numpy() for name, tensor in state.items()} for state in states])
    for name in ("w", "b"):
        np.testing.assert_allclose(out.value[name].cpu().numpy(), expected.value[name], atol=1e-5)


def test_same_bits_twice() -> None:
    X = torch.randn((20, 1_000_003), device="cuda")
    first, second = hn.aggregate(X), hn.aggregate(X)
    assert torch.equal(first.value, second.value)
    assert first.weights.tobytes() == second.weights.tobytes()


@pytest.mark.parametrize("cut", [slice(0, None), slice(1, None), slice(0, -1), slice(3, -2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rule", [hn.Mean(), hn.Bayesian(), hn.MultiKrum(f=5)], ids=str)
def test_rows_that_begin_anywhere(rule: hn.Rule, dtype: str, cut: slice) -> None:
    """Neighbouring values are read at once only where that is allowed."""
    whole = on_device("torch", federation(d=100_004), dtype)[:, cut]
    out, expected = hn.aggregate(whole, rule), hn.aggregate(back(whole), rule)
    width = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype]
    np.testing.assert_allclose(back(out.value), expected.value, rtol=0, atol=width * 3)


def test_foreseen_weights_and_others_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    X = on_device("torch", federation(), "float32")
    for rule in (hn.Bayesian(), hn.Mean()):
        first = hn.aggregate(X, rule)
        for wrong in (None, np.full(20, 0.05), np.eye(20)[3]):
            with monkeypatch.context() as patch:
                patch.setattr(type(rule), "foresee", lambda self, K, d, layers, wrong=wrong: wrong)
                again = hn.aggregate(X, rule)
            assert torch.equal(first.value, again.value)
            np.testing.assert_array_equal(first.weights, again.weights)


def test_an_error_leaves_nothing_behind() -> None:
    X = on_device("torch", federation(), "float32")
    expected = hn.aggregate(X)
    for _ in range(20):
        with pytest.raises(ValueError, match="needs at least"):
            hn.aggregate(X, hn.MultiKrum(f=18))
        with pytest.raises(ValueError, match="buffers"):
            hn.aggregate(X, buffers="no")
        with torch.cuda.stream(torch.cuda.Stream()):
            assert torch.equal(hn.aggregate(X).value, expected.value)


def test_from_many_threads_at_once() -> None:
    some = [on_device("torch", federation(M=m), "float32") for m in range(1, 5)]
    expected = [hn.aggregate(X) for X in some]
    with ThreadPoolExecutor(8) as pool:
        for n, out in enumerate(pool.map(lambda n: hn.aggregate(some[n % 4]), range(64))):
            assert torch.equal(out.value, expected[n % 4].value)
