"""Every rule and mixer through `aggregate`: the engine agrees with the reference engine of the tests."""

import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import ARC, NNM, Bucketing, FoolsGold, GeometricMedian, Mean, Median, MultiKrum
from honestly.rules.fltrust import FLTrust

from .clients import honest, mixtures, value
from .test_common import CASES, MIXER_CASES, Case, each

K, d = 12, 40
# Rules that look at single tensors are tested through state dicts, in test_output_layer and the like.
FLAT = tuple(case for case in CASES if not case.layers)


def setting(with_reference):
    X = honest(K, d)
    return X, (X.mean(axis=0) - 2.0 if with_reference else None)


@each(FLAT)
@pytest.mark.parametrize("with_reference", [False, True])
def test_rules(case: Case, with_reference):
    X, reference = setting(with_reference)
    root = X[:3].mean(axis=0)
    rule = FLTrust(root=root) if isinstance(case.rule, FLTrust) else case.rule
    out = aggregate(X, rule, reference=reference)
    np.testing.assert_allclose(out.value, value(rule, X, reference=reference, root=root), rtol=1e-5, atol=1e-6)
    if out.weights is not None:
        assert out.weights.sum() == pytest.approx(1.0)


@each(MIXER_CASES)
@pytest.mark.parametrize("rule", [GeometricMedian(), Median(), MultiKrum(f=1)], ids=repr)
@pytest.mark.parametrize("with_reference", [False, True])
def test_mixers(case: Case, rule, with_reference):
    X, reference = setting(with_reference)
    out = aggregate(X, rule, pre=case.rule, reference=reference)
    expected = value(rule, mixtures(case.rule, X, reference=reference), reference=reference)
    np.testing.assert_allclose(out.value, expected, rtol=1e-5, atol=1e-6)


@each(FLAT)
def test_every_rule_behind_two_mixers(case: Case):
    X, reference = setting(True)
    first, second = ARC(f=3), NNM(f=2)
    root = X[:3].mean(axis=0)
    rule = FLTrust(root=root) if isinstance(case.rule, FLTrust) else case.rule
    mixed = mixtures(second, mixtures(first, X, reference=reference), reference=reference)
    out = aggregate(X, rule, pre=(first, second), reference=reference)
    np.testing.assert_allclose(out.value, value(rule, mixed, reference=reference, root=root), rtol=1e-5, atol=1e-6)


@each(FLAT)
def test_a_client_with_nan_is_excluded(case: Case):
    X, reference = setting(True)
    X[-1, 3] = np.nan
    root = X[:3].mean(axis=0)
    rule = FLTrust(root=root) if isinstance(case.rule, FLTrust) else case.rule
    out = aggregate(X, rule, reference=reference)
    assert out.excluded == (K - 1,)
    np.testing.assert_allclose(out.value, value(rule, X[:-1], reference=reference, root=root), rtol=1e-5, atol=1e-6)


def test_sizes_follow_their_clients():
    X = {"a": np.ones(3), "b": np.full(3, np.nan), "c": np.full(3, 2.0), "d": np.full(3, 5.0)}
    out = aggregate(X, Mean(sizes="trusted"), sizes={"a": 1, "b": 100, "c": 3, "d": "many"})
    np.testing.assert_allclose(out.value, (1 * 1 + 3 * 2) / 4)
    np.testing.assert_allclose(out.weights, [0.25, 0, 0.75, 0])


def test_memory_and_permutations_carry_over_to_the_next_round():
    X = dict(zip("abcdefgh", honest(8, d), strict=True))
    rule, mixer = FoolsGold(), Bucketing(size=1, seed=4)
    for _ in range(3):
        out = aggregate(X, rule)
        rule, mixer = rule.after(out.diagnostics), mixer.after(out.diagnostics)
    assert rule.memory.ids == tuple("abcdefgh")
    C = np.array(list(X.values()))
    np.testing.assert_allclose(rule.memory.products, 3 * C @ C.T, rtol=1e-9)
    assert mixer.seed == 7
