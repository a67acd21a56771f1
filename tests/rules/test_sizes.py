"""Sizes that clients claim: the cap, what liars can gain, and small clients that are not liars."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import honestly as hn
from honestly.rules.bayesian.guard import EXACT, WITHIN
from honestly.rules.rule import GramGeometry
from honestly.rules.sizes import MOST_MEDIANS, used_sizes
from honestly.studies.layers.patterns import bound

CLAIMS = (0.0, -5.0, np.nan, np.inf, 1e-300, 1e9, 1e300, 1.7e308)


def random_claims(rng: np.random.Generator, n: int, liars: int) -> np.ndarray:
    claims = np.exp(rng.choice([0.1, 1.0, 3.0, 30.0]) * rng.normal(size=n))
    claims[n - liars :] = rng.choice(CLAIMS, size=liars)
    return claims


@pytest.mark.parametrize("seed", range(20))
def test_no_minority_of_clients_gets_a_majority_of_the_weight(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(100):
        n = int(rng.integers(2, 40))
        most = (n - 1) // 2
        f = int(rng.integers(0, most + 1))
        claims = random_claims(rng, n, int(rng.integers(0, n + 1)))
        used = used_sizes(claims, f)
        assert np.isfinite(used).all()
        assert used.min() >= 0
        assert used.max() == 1
        ranked = np.sort(used)
        assert ranked[n - max(f, 1) :].sum() <= ranked[: n - max(f, 1)].sum() * (1 + 1e-9)
        # claiming more never reduces the weight
        order = np.argsort(np.where(np.isfinite(claims) & (claims > 0), claims, 0))
        assert (np.diff(used[order]) >= 0).all()


def cap(claims: np.ndarray, f: int) -> float:
    """T in examples, read off the honest clients, who come first: used = claim / T, or 1 where the claim is more."""
    used = used_sizes(claims, f)
    honest = len(claims) - f
    return float((claims[:honest] / used[:honest]).min())


@pytest.mark.parametrize("seed", range(10))
def test_liars_cannot_raise_the_cap(seed: int) -> None:
    """Whatever f of n claim, the cap in examples is at most what it is if they claim as much as anybody may use."""
    rng = np.random.default_rng(100 + seed)
    for _ in range(100):
        n = int(rng.integers(3, 30))
        f = (n - 1) // 2
        claims = random_claims(rng, n, f)
        claims[: n - f] = np.exp(rng.normal(size=n - f))

        greedy = claims.copy()
        greedy[n - f :] = 1e9
        if (used_sizes(claims, f) == 1.0).all():
            continue  # every client counts once
        assert cap(claims, f) <= cap(greedy, f) * (1 + 1e-9)
        assert cap(greedy, f) <= MOST_MEDIANS * np.max(claims[: n - f])


def test_equal_sizes_and_no_sizes_are_the_same_to_the_last_bit() -> None:
    X = np.random.default_rng(0).normal(size=(12, 500))
    plain = hn.aggregate(X)
    for sizes in (None, "ignore", [7] * 12, dict.fromkeys(range(12), 3.5), [0] * 12, ["many"] * 12):
        assert hn.aggregate(X, sizes=sizes).value.tobytes() == plain.value.tobytes()


def test_a_claim_of_everything_is_worth_as_much_as_the_cap() -> None:
    X = 1 + np.random.default_rng(0).normal(size=(10, 800))
    sizes = np.array([100.0] * 9 + [10.0])
    out = hn.aggregate(X, sizes=sizes)
    assert out.weights is not None
    assert out.weights[9] == pytest.approx(out.weights[0] / 10, rel=0.3)
    sizes[9] = 1e9
    greedy = hn.aggregate(X, sizes=sizes)
    assert greedy.weights is not None
    assert greedy.weights[9] == pytest.approx(0.25, rel=0.3)  # three medians
    assert greedy.diagnostics["claimed_shares"][9] > 0.99
    assert greedy.diagnostics["used_shares"][9] == pytest.approx(0.25)
    sizes[6:] = 1e9
    greedy = hn.aggregate(X, sizes=sizes)
    assert greedy.diagnostics["used_shares"][6:].sum() == pytest.approx(0.5)


@pytest.mark.parametrize("seed", range(30))
def test_the_guarantee_holds_for_any_claims(seed: int) -> None:
    """kappa <= f / (n - f' - f) of the honest mean, with random claims of f' liars who send what they like."""
    rng = np.random.default_rng(seed)
    for _ in range(6):
        n = int(rng.integers(3, EXACT + 1))
        f = (n - 1) // 2
        liars = int(rng.integers(0, f + 1))
        d = int(rng.choice([1, 5, 200]))
        X = rng.normal(size=(n, d)) * np.exp(rng.choice([0.0, 1.5]) * rng.normal(size=(n, 1)))
        push = rng.normal(size=d) * rng.choice([0.5, 1, 3, 30])
        X[n - liars :] = push + rng.choice([0.0, 0.1, 1.0]) * rng.normal(size=(liars, d))
        honest = X[: n - liars]
        mean, claims = honest.mean(axis=0), random_claims(rng, n, liars)
        variance = float(np.square(honest - mean).sum(axis=1).mean())
        value = hn.aggregate(X, sizes=claims).value
        kappa = float(np.square(value - mean).sum()) / variance
        assert kappa <= f / (n - liars - f) * WITHIN * (1 + 1e-6), (n, liars, claims)
        if f and liars:
            assert f / (n - liars - f) <= bound(n, f) * (1 + 1e-9)
        # and the honest mean by used size is within the variation of these sizes of the honest mean by heads
        used = used_sizes(claims)[: n - liars]
        if used.sum() > 0:
            apart = used @ honest / used.sum() - mean
            variation = used.std() / used.mean()
            assert float(np.square(apart).sum()) <= variation**2 * variance * (1 + 1e-9) + 1e-20


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_small_clients_are_noisy_and_not_accused(scale: float) -> None:
    accused: dict[str, int] = {"with": 0, "without": 0}
    unusual: dict[str, int] = {"with": 0, "without": 0}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        size = np.full(20, 100.0)
        size[:6] = rng.choice([1, 2, 3, 5], 6)
        step = {"a": 0.05 * rng.normal(size=400), "b": 0.05 * rng.normal(size=60)}
        updates = [
            {
                name: x + scale * 0.5 / np.sqrt(size[k]) * rng.normal(size=x.shape) + 0.02 * rng.normal(size=x.shape)
                for name, x in step.items()
            }
            for k in range(20)
        ]
        for name, sizes in (("with", size), ("without", None)):
            out = hn.aggregate(updates, reference={k: 0 * x for k, x in step.items()}, sizes=sizes)
            accused[name] += len(out.accused)
            unusual[name] += sum(verdict is hn.Verdict.UNUSUAL for verdict in out.verdicts)
    assert accused["with"] == 0
    assert unusual["with"] == 0
    assert unusual["without"] > 50  # the test can fail: without sizes they are


def test_liars_are_caught_with_sizes_too() -> None:
    rng = np.random.default_rng(0)
    X = 1 + rng.normal(size=(20, 1000))
    X[14:] = -2 + 0.5 * rng.normal(size=(6, 1000))
    for claim in (1e9, 100.0, 50.0, 10.0, 1.0):
        sizes = np.full(20, 100.0)
        sizes[14:] = claim
        assert hn.aggregate(X, sizes=sizes).accused == tuple(range(14, 20))


WEIGHTED = [hn.Krum(f=2), hn.MultiKrum(f=2, keep=6), hn.GeometricMedian(), hn.MinimumVariance(f=2), "foolsgold"]


@pytest.mark.parametrize("rule", WEIGHTED, ids=str)
def test_every_rule_that_weighs_clients_uses_sizes(rule: Any) -> None:
    X = 1 + np.random.default_rng(0).normal(size=(11, 300))
    sizes = np.array([10.0, *[100.0] * 9, 1e12])
    plain, sized = hn.aggregate(X, rule), hn.aggregate(X, rule, sizes=sizes)
    assert plain.weights is not None
    assert sized.weights is not None
    used = used_sizes(sizes, getattr(rule, "f", None))
    np.testing.assert_allclose(sized.weights, plain.weights * used / (plain.weights @ used), rtol=1e-6)
    np.testing.assert_allclose(sized.value, sized.weights @ X, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sized.diagnostics["used_shares"].sum(), 1.0)


def test_medians_and_rules_behind_mixers_count_every_client_once() -> None:
    X = 1 + np.random.default_rng(0).normal(size=(10, 50))
    sizes = np.arange(1.0, 11.0)
    for rule, pre in (("median", ()), ("trimmed_mean", ()), ("bayesian", "bucketing"), ("mean", ())):
        assert (
            hn.aggregate(X, rule, pre=pre, sizes=sizes).value.tobytes()
            == hn.aggregate(X, rule, pre=pre).value.tobytes()
        )


def test_excluded_clients_have_no_share() -> None:
    X = 1 + np.random.default_rng(0).normal(size=(8, 50))
    X[3] = np.nan
    out = hn.aggregate(X, sizes=np.arange(1.0, 9.0))
    assert out.diagnostics["used_shares"][3] == out.diagnostics["claimed_shares"][3] == 0.0
    np.testing.assert_allclose(out.diagnostics["claimed_shares"].sum(), 1.0)


def test_thousands_of_clients_by_size() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1600, 40))
    sizes = np.full(1600, 100.0)
    sizes[:100] = 1.0
    out = hn.aggregate(X, hn.Bayesian(at_most=0.2), sizes=sizes)
    assert out.weights is not None
    assert out.weights[:100].mean() < 0.5 * out.weights[100:].mean()
    np.testing.assert_allclose(out.weights.sum(), 1.0)


def test_at_most_nobody_is_the_mean_by_size() -> None:
    X = np.random.default_rng(0).normal(size=(6, 30))
    sizes = np.array([1.0, 2, 3, 3, 2, 2])
    out = hn.aggregate(X, hn.Bayesian(at_most=0.0), sizes=sizes)
    np.testing.assert_allclose(out.weights, sizes / sizes.sum())
    assert hn.Bayesian().mix(GramGeometry(X @ X.T)).diagnostics.get("used_shares") is None


@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
def test_a_column_of_sizes_is_read_like_a_row(library: str) -> None:
    """A recent NumPy makes no float of an array of one value: the sizes were ignored without a word."""
    make = importlib.import_module(library)
    make = make.tensor if library == "torch" else make.asarray
    X = np.random.default_rng(0).normal(size=(4, 30))
    sizes = [1.0, 2.0, 3.0, 4.0]
    flat, column = (hn.aggregate(X, sizes=s).diagnostics["used_shares"] for s in (sizes, make([[s] for s in sizes])))
    np.testing.assert_allclose(column, flat, rtol=1e-6)


def test_a_claim_that_raises_an_exception_is_no_claim() -> None:
    import torch

    X = np.random.default_rng(0).normal(size=(4, 30))
    for claim in (torch.tensor([1.0, 2.0]), torch.empty(1, device="meta"), np.zeros((2, 2)), [1.0]):
        out = hn.aggregate(X, sizes=[claim, 2.0, 3.0, 4.0])
        np.testing.assert_array_equal(out.diagnostics["claimed_shares"][0], 0.0)
        assert out.verdicts[0] is hn.Verdict.TRUSTED
