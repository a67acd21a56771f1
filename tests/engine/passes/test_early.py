"""Kernels that start before the engine has looked: the result never depends on it, whatever was foreseen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compiler import needs_compiler

import honestly as hn
from honestly.engine import Pipeline, run
from honestly.engine.passes import BETWEEN, EarlyStart, early
from honestly.engine.passes.device import DevicePasses
from honestly.rules.bayesian import compiled
from honestly.sources import matrix, open_source


class Flag:
    """As that of `cuda_kernels`, counting how often it was waited for."""

    waits = 0

    def __init__(self, fine: bool) -> None:
        self.fine = fine

    def down(self) -> bool:
        Flag.waits += 1
        return self.fine


class Mixing:
    """`weights @ rows` on the CPU."""

    started: list[np.ndarray]

    def __init__(self, rows: Any, flag: Any) -> None:
        self.rows, self.flag = rows, Flag(bool((rows.abs() < 1e17).all()))

    def __call__(self, weights: np.ndarray) -> Any:
        Mixing.started.append(weights)
        return torch.tensor(weights, dtype=torch.float32) @ self.rows


class PendingGram:
    """`C C^T` on the CPU."""

    ended = 0

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def finish(self) -> np.ndarray:
        PendingGram.ended += 1
        X = self.rows.double().numpy()
        C = X - np.sort(X[[0, len(X) // 2, -1]], axis=0)[1]
        with np.errstate(invalid="ignore"):
            return (C @ C.T)[None]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own CPU stands for the GPU."""
    Mixing.started, PendingGram.ended, Flag.waits = [], 0, 0
    monkeypatch.setattr(early, "_is_plain_matrix", lambda updates: getattr(updates, "dtype", None) == torch.float32)
    kernels = SimpleNamespace(
        start_gram=lambda rows, middle, parts: PendingGram(rows), mixing=Mixing, flag=lambda like: None
    )
    monkeypatch.setattr(early, "fused", kernels)
    monkeypatch.setattr(matrix.arrays, "on_host", lambda x: not isinstance(x, torch.Tensor))
    monkeypatch.setattr(DevicePasses, "free_centre", lambda self, clients: BETWEEN)
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)


def aggregate(X: Any, rule: hn.Rule) -> hn.Aggregate:
    """`hn.aggregate` with the passes of a device."""
    pipeline, source = Pipeline.of(rule), open_source(X)
    with EarlyStart(X, pipeline) as started:
        return run(source, pipeline, passes=DevicePasses(source, started))


def federation(K: int = 9, d: int = 500) -> Any:
    rng = np.random.default_rng(0)
    X = 1.0 + rng.normal(size=(K, d))
    X[-2:] *= -3
    return torch.tensor(X, dtype=torch.float32)


@pytest.mark.parametrize("rule", [hn.Mean(), hn.Bayesian()], ids=str)
def test_what_was_foreseen_is_what_is_decided(rule: hn.Rule) -> None:
    X = federation()
    out, expected = aggregate(X, rule), hn.aggregate(X.double(), rule)
    np.testing.assert_allclose(out.value, expected.value, rtol=0, atol=1e-5)
    assert out.verdicts == expected.verdicts
    if rule == hn.Mean() or compiled.program.available():
        assert len(Mixing.started) == 1  # the engine's own call was not needed


@pytest.mark.parametrize(
    "rule", [hn.MultiKrum(f=2), hn.GeometricMedian(), hn.Bulyan(f=1), hn.Bayesian(variant="paper")]
)
def test_rules_that_foresee_nothing_use_the_early_products_once(rule: hn.Rule) -> None:
    X = federation()
    out = aggregate(X, rule)
    np.testing.assert_allclose(out.value, hn.aggregate(X.double(), rule).value, rtol=0, atol=1e-5)
    assert PendingGram.ended == 1
    assert len(Mixing.started) == (rule.name in ("multi_krum", "geometric_median", "bayesian"))


@pytest.mark.parametrize("wrong", [np.full(9, 1 / 9), np.eye(9)[0]])
def test_wrong_foresight_is_thrown_away(wrong: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hn.Bayesian, "foresee", lambda self, K, d, layers: wrong)
    X = federation()
    np.testing.assert_allclose(aggregate(X, hn.Bayesian()).value, hn.aggregate(X.double()).value, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(Mixing.started[0], wrong)
    assert Flag.waits == 1  # its memory is used again


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("rule", [hn.Mean(), hn.Bayesian()], ids=str)
def test_faulty_clients_are_excluded(rule: hn.Rule, value: float) -> None:
    X = federation()
    X[3, 7] = value
    out = aggregate(X, rule)
    assert out.excluded == (3,)
    rest = [k for k in range(9) if k != 3]
    np.testing.assert_allclose(out.value, hn.aggregate(X[rest].double(), rule).value, rtol=0, atol=1e-5)


def test_a_far_centre_is_measured_again() -> None:
    X = federation()
    X[[0, 4, 8]] += 1e4  # the three clients that make the centre
    expected = hn.aggregate(X.double())
    np.testing.assert_allclose(aggregate(X, hn.Bayesian()).value, expected.value, rtol=0, atol=1e-3)


def test_nothing_is_under_way_after_an_error() -> None:
    X = federation()
    with pytest.raises(ZeroDivisionError), EarlyStart(X, Pipeline.of(hn.Bayesian())):
        raise ZeroDivisionError
    assert PendingGram.ended == 1
    with pytest.raises(ZeroDivisionError), EarlyStart(X, Pipeline.of(hn.Mean())):
        raise ZeroDivisionError
    assert Flag.waits == 1


def test_nothing_is_started_behind_mixers_for_two_clients_or_with_sizes() -> None:
    for X, words in ((federation(), "nnm:f=2+bayesian"), (federation(2), "mean"), (None, "bayesian")):
        with EarlyStart(X, Pipeline.of(words)) as started:
            assert started.gram() is None
    with EarlyStart(federation(), Pipeline.of(hn.Mean(sizes="capped"))) as started:
        assert started.gram() is None
    assert not Mixing.started


@needs_compiler
def test_the_program_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    answer = compiled.program.estimate
    monkeypatch.setattr(compiled.program, "estimate", lambda *args: asked.append(args) or answer(*args))
    aggregate(federation(), hn.Bayesian())
    assert len(asked) == 1
    aggregate(federation(), hn.Bayesian(at_most=0.3))
    assert len(asked) == 2
