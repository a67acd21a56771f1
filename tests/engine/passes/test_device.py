"""The accelerator's passes, run on CPU arrays of each library, against the host's passes."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import pytest
from conftest import Library, tolerance

import honestly as hn
from honestly import arrays
from honestly.engine.passes import BETWEEN, device, device_columns

RULES = [
    hn.Mean(), hn.Bayesian(), hn.Krum(f=2), hn.GeometricMedian(), hn.Median(), hn.TrimmedMean(trim=0.2), hn.Bulyan(f=1),
]  # fmt: skip


@pytest.fixture(params=["torch", "jax", "array_api_strict"])
def accelerated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Arrays that claim to be elsewhere, in blocks so small that every loop runs more than once."""
    monkeypatch.setattr(arrays, "on_host", lambda x: isinstance(x, np.ndarray | np.generic))
    monkeypatch.setattr(device_columns, "BLOCK", 1000)
    return Library(request.param)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_matrix_agrees_with_the_host(
    accelerated: Library, federation: Callable[..., np.ndarray], rule: hn.Rule
) -> None:
    for dtype in accelerated.dtypes():
        X = accelerated.array(federation(M=2, d=3000), dtype)
        out, expected = hn.aggregate(X, rule), hn.aggregate(accelerated.numpy(X), rule)
        assert type(out.value) is type(X)
        assert out.value.dtype == X.dtype
        np.testing.assert_allclose(accelerated.numpy(out.value), expected.value, rtol=0, atol=5 * tolerance(dtype))


@pytest.mark.parametrize("liars", [(), (0,), (0, 14), (0, 7, 14)])
def test_the_median_of_three_clients_as_the_centre(
    accelerated: Library, federation: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch, liars: tuple[int, ...]
) -> None:
    """Only if a kernel supports it; with two liars among the three, or a NaN, another centre must be found."""
    monkeypatch.setattr(device.DevicePasses, "free_centre", lambda self, clients: BETWEEN)
    X = federation(K=15, d=3000) + 300 * federation(K=1, d=3000, seed=1)
    X[list(liars)] = 1e9
    expected = hn.aggregate(X)
    out = hn.aggregate(accelerated.array(X))
    np.testing.assert_allclose(out.weights, expected.weights, atol=1e-4)
    if liars:
        X[liars[0], 5] = np.nan
        out = hn.aggregate(accelerated.array(X))
        assert out.excluded == (liars[0],)


def test_layers_with_reference_and_faults(accelerated: Library, federation: Callable[..., np.ndarray]) -> None:
    X = federation(K=9, M=2, d=3000)
    X[3, 2500] = np.nan
    X[4, 7] = np.inf
    model = np.random.default_rng(1).normal(size=3000)

    def update(x: np.ndarray) -> dict[str, object]:
        return {"w": accelerated.array(x[:2000].reshape(40, 50)), "b": accelerated.array(x[2000:]), "n": 3}

    out = hn.aggregate({f"c{k}": update(x + model) for k, x in enumerate(X)}, reference=update(model))
    expected = hn.aggregate({f"c{k}": x + model for k, x in enumerate(X)}, reference=model, layers=[2000, 1000])
    assert out.excluded == ("c3", "c4")
    assert out.reasons["c3"] == "tensor 'b' at flat index 500 is NaN"
    assert out.value["n"] == 3
    assert tuple(out.value["w"].shape) == (40, 50)
    np.testing.assert_allclose(out.weights, expected.weights, atol=1e-5)
    joined = np.concatenate([accelerated.numpy(out.value["w"]).ravel(), accelerated.numpy(out.value["b"])])
    np.testing.assert_allclose(joined, expected.value, atol=1e-4)


def test_streaming_and_mixers(
    accelerated: Library, federation: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = importlib.import_module("honestly.engine.run")
    X = federation(K=40, M=12, d=3000)
    for pre in ((), (hn.NNM(f=12),)):
        expected = hn.aggregate(X, "geometric_median", pre=pre).value
        monkeypatch.setattr(engine, "STREAM_FROM", 10)
        out = hn.aggregate(accelerated.array(X), "geometric_median", pre=pre)
        np.testing.assert_allclose(accelerated.numpy(out.value), expected, atol=1e-3)
