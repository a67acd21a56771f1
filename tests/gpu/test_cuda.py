"""The engine on a CUDA device: torch (Triton kernels and the plain way), CuPy and JAX against float64 on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import honestly as hn
from honestly.passes import fused, passes_over
from honestly.rules.base import squared_distances
from honestly.sources import open_source
from honestly.survey import Survey

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
RULES = [
    hn.Mean(), hn.Bayesian(), hn.Bayesian(variant="paper"), hn.Krum(f=4), hn.GeometricMedian(), hn.Median(),
    hn.TrimmedMean(trim=0.2), hn.Bulyan(f=4),
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


@pytest.mark.parametrize("plain", [False, True], ids=["triton", "plain"])
@pytest.mark.parametrize("K", [2, 3, 16, 20, 33, 64, 100])
def test_distances_have_no_tf32_error(K: int, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain:
        monkeypatch.setattr(fused, "_kernels", lambda: None)
    rng = np.random.default_rng(K)
    W = (1e3 * rng.normal(size=50_001) + 1e-3 * rng.normal(size=(K, 50_001))).astype(np.float32)
    source = open_source(torch.tensor(W, device="cuda"))
    G, _ = Survey(source, passes_over(source)).gram()
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
    expected = hn.aggregate([np.concatenate([s["w"].cpu().numpy().ravel(), s["b"].cpu().numpy()]) for s in states])
    joined = torch.cat([out.value["w"].reshape(-1), out.value["b"]]).cpu().numpy()
    np.testing.assert_allclose(joined, expected.value, atol=1e-5)


def test_same_bits_twice() -> None:
    X = torch.randn((20, 1_000_003), device="cuda")
    first, second = hn.aggregate(X), hn.aggregate(X)
    assert torch.equal(first.value, second.value)
    assert first.weights.tobytes() == second.weights.tobytes()
