import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import GeometricMedian, RoDiLoCo

from .clients import honest


def rounds(count=5, K=9, seed=0, bad=2):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        X = rng.normal(0.3, 1.0, (K, 40))
        X[K - bad :] *= -10.0
        yield X


def naive(all_rounds, beta=0.9, temperature=0.1):
    """Worker by worker, as the public code does it; the first value is given."""
    scores, last, values = np.zeros(9), None, []
    for X in all_rounds:
        if last is None:
            last = aggregate(X, GeometricMedian()).value
        else:
            for k, u in enumerate(X):
                cosine = u @ last / np.linalg.norm(u) / np.linalg.norm(last)
                scores[k] = beta * scores[k] + (1 - beta) * cosine
            trust = np.exp(scores / temperature)
            v = sum(t * u / np.linalg.norm(u) for t, u in zip(trust / trust.sum(), X, strict=True))
            last = v / np.linalg.norm(v) * np.median([np.linalg.norm(u) for u in X])
        values.append(last)
    return values


@pytest.mark.parametrize("reference", [0.0, 0.7])
@pytest.mark.parametrize("settings", [{}, {"beta": 0.0, "temperature": 1.0}])
def test_matches_the_loop(settings, reference):
    rule = RoDiLoCo(**settings)
    for X, expected in zip(rounds(), naive(list(rounds()), **settings), strict=True):
        out = aggregate(X + reference, rule, reference=np.full(40, reference))
        np.testing.assert_allclose(out.value - reference, expected, rtol=1e-6, atol=1e-8)
        rule = rule.after(out.diagnostics)


def test_liars_lose_their_weight_with_time():
    rule, shares = RoDiLoCo(), []
    for X in rounds(12):
        mix = aggregate(X, rule, reference=np.zeros(40))
        rule = rule.after(mix.diagnostics)
        trust = np.exp(mix.diagnostics["scores"] / rule.temperature)
        shares.append(float(trust[7:].sum() / trust.sum()))
    assert shares[-1] < 0.03 < shares[1]


def test_the_scores_follow_the_clients_names():
    X = next(iter(rounds()))
    names = list("abcdefghi")
    first = aggregate(dict(zip(names, X, strict=True)), RoDiLoCo(), reference=np.zeros(40))
    rule = RoDiLoCo().after(first.diagnostics)
    straight = aggregate(dict(zip(names, X, strict=True)), rule, reference=np.zeros(40))
    backwards = aggregate(dict(zip(names[::-1], X[::-1], strict=True)), rule, reference=np.zeros(40))
    np.testing.assert_allclose(straight.value, backwards.value)
    assert dict(straight.diagnostics["memory"].scores) == pytest.approx(dict(backwards.diagnostics["memory"].scores))


def test_another_model_resets_the_scores():
    first = aggregate(honest(7, 20), RoDiLoCo(), reference=np.zeros(20))
    rule = RoDiLoCo().after(first.diagnostics)
    X = honest(7, 30)
    np.testing.assert_allclose(aggregate(X, rule, reference=np.zeros(30)).value, aggregate(X, RoDiLoCo()).value)


def test_updates_without_length_and_updates_that_cancel():
    rule = RoDiLoCo().after(aggregate(honest(4, 6), RoDiLoCo(), reference=np.zeros(6)).diagnostics)
    np.testing.assert_array_equal(aggregate(np.zeros((4, 6)), rule, reference=np.zeros(6)).value, np.zeros(6))
    u = np.eye(6)[0]
    level = RoDiLoCo(beta=0.0, temperature=1e9).after({"memory": rule.memory})
    np.testing.assert_allclose(aggregate([u, -u], level, reference=np.zeros(6)).value, 0.0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_client_that_changes_one_bit_does_not_drown_the_model_in_rounding(dtype):
    rng = np.random.default_rng(0)
    old, direction, rule = rng.normal(size=3000).astype(dtype), rng.normal(size=3000), RoDiLoCo()
    for _ in range(3):
        updates = (old + 0.01 * (direction + rng.normal(size=(8, 3000)))).astype(dtype)
        updates[0] = old
        updates[0, 5] = np.nextafter(old[5], dtype(np.inf))
        out = aggregate(updates, rule, reference=old)
        step = (out.value - old).astype(float)
        length = np.linalg.norm(step)
        assert length < 1.01 * np.median(np.linalg.norm(updates[1:] - old, axis=1))
        assert step @ direction > 0.9 * length * np.linalg.norm(direction)
        rule, old = rule.after(out.diagnostics), out.value
