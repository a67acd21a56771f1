"""Properties of every rule: add ONE line to CASES, and a new rule inherits all tests."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from honestly.rules import *
from honestly.rules.rule import Mixer, Rule

from .clients import geometry, honest, mixtures, value


@dataclass(frozen=True)
class Case:
    """A rule, and which of the common properties it has by definition."""

    rule: Rule | Mixer
    robust: bool = True  # one client at 1e12 moves the value by no more than a few spreads
    many: bool = True  # nor do f clients (or 5 of 12), wherever they are
    about_reference: bool = False  # it measures clients from the reference: moving only the clients changes the answer
    scales: bool = True  # scaling the updates scales the value
    permutes: bool = True  # the order of the clients does not matter
    translates: bool = True  # moving clients and reference moves the value
    alone: bool = True  # one client is enough, and it is the answer
    layers: tuple[int, ...] = ()  # its input comes in layers of these sizes
    bad: tuple[dict[str, Any], ...] = ()  # settings that must be refused


NAN = float("nan")
BAD_F = ({"f": -1}, {"f": 1.5}, {"f": "2"}, {"f": True}, {"f": NAN})
CASES = (
    Case(Mean(), robust=False, bad=({"sizes": "yes"}, {"cap": 0.5}, {"cap": NAN})),
    Case(Median()),
    Case(TrimmedMean(trim=0.42), bad=({"trim": 0.5}, {"trim": -0.1}, {"trim": NAN}, {"f": -1})),
    Case(GeometricMedian(), bad=({"tolerance": 0.0}, {"tolerance": NAN}, {"steps": 0})),
    Case(Krum(f=3), alone=False, bad=BAD_F),
    Case(MultiKrum(f=3), alone=False, bad=(*BAD_F, {"f": 1, "keep": 0})),
    Case(Bulyan(f=2), alone=False, bad=BAD_F),
    Case(MinimumVariance(f=3), alone=False, bad=(*BAD_F, {"f": 1, "work": 0})),
    Case(Bayesian(), bad=({"variant": "other"}, {"scale_free": "yes"})),
    Case(Bayesian(variant="paper"), many=False),
    Case(CenteredClipping(), bad=({"tau": 0.0}, {"tau": NAN}, {"steps": 0})),
    Case(CenteredClipping(tau=2.0), scales=False),
    Case(SmoothedGeometricMedian(), bad=({"nu": 0.0}, {"nu": NAN}, {"steps": 0})),
    Case(MDA(f=3), alone=False, bad=(*BAD_F, {"f": 1, "work": 0})),
    Case(SMEA(f=3), alone=False, bad=(*BAD_F, {"f": 1, "work": 0})),
    Case(MoNNA(f=3, trusted=5), permutes=False, alone=False, bad=BAD_F),
    Case(CAF(f=3), alone=False, bad=BAD_F),
    Case(Meamed(f=3), alone=False, bad=BAD_F),
    Case(CGE(f=3), about_reference=True, alone=False, bad=BAD_F),
    Case(NormClipping(), about_reference=True, bad=({"radius": 0.0}, {"radius": NAN})),
    Case(NormClipping(radius=2.0), about_reference=True, scales=False),
    Case(DnC(f=3), many=False, alone=False, bad=(*BAD_F, {"f": 1, "share": NAN}, {"f": 1, "share": -1})),
    Case(SignGuard(), about_reference=True, bad=({"lower": NAN}, {"lower": 2.0}, {"upper": 1.0})),
    Case(ClippedClustering(), about_reference=True, bad=({"radius": -1.0},)),
    Case(FLTrust(), about_reference=True),
    Case(FoolsGold(), robust=False, about_reference=True, bad=({"kappa": 0.0},)),
    Case(FLAME(), about_reference=True),
    Case(RLR(), robust=False, about_reference=True, bad=({"threshold": 0.0}, {"threshold": 1.5}, {"threshold": NAN})),
    Case(QUE(f=3), alone=False, bad=(*BAD_F, {"f": 1, "alpha": -1.0}, {"f": 1, "alpha": NAN})),
    Case(RFLBAT(), many=False, about_reference=True, bad=({"eps1": 1.0}, {"eps2": NAN}, {"most": 0})),
    Case(FLDetector(), robust=False, about_reference=True, bad=({"window": 0}, {"window": 1.5})),
    Case(AlignIns(), translates=False, about_reference=True, bad=({"radius_c": 0.0}, {"radius_s": NAN}, {"top": 0.0})),
    Case(LASA(), about_reference=True, bad=({"sparsity": 1.0}, {"radius_n": 0.0}, {"radius_s": NAN})),
    Case(FreqFed(), about_reference=True, bad=({"low": 0.0}, {"low": NAN})),
    Case(DeepSight(), about_reference=True, layers=(1, 4, 2), bad=({"tau": 0.0}, {"tau": 1.5}, {"tau": NAN})),
    # features of BatchNorm's statistics are compared unscaled, wherever the clients are
    Case(BatchNormGuard(), many=False, about_reference=True, scales=False, translates=False, layers=(3, 4)),
    Case(RoDiLoCo(), about_reference=True, bad=({"beta": 1.0}, {"beta": NAN}, {"temperature": 0.0})),
)
MIXER_CASES = (
    Case(NNM(f=3), robust=False, alone=False, bad=BAD_F),
    Case(Bucketing(size=2), robust=False, permutes=False, bad=({"size": 0}, {"size": 1.5}, {"seed": -1})),
    Case(ARC(f=3), about_reference=True, alone=False, bad=BAD_F),
    Case(StaticClipping(radius=2.0), about_reference=True, scales=False, bad=({"radius": 0.0}, {"radius": NAN})),
)
ALL = (*CASES, *MIXER_CASES)
K, d = 12, 7


def each(cases: tuple[Case, ...], **having: bool) -> pytest.MarkDecorator:
    """The cases with the given flags."""
    chosen = [case for case in cases if all(getattr(case, flag) == wanted for flag, wanted in having.items())]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: repr(case.rule))


def outcome(case: Case, X: Any, reference: Any = None, root: Any = None) -> np.ndarray:
    """The value of a rule, the mixtures of a mixer. The trusted root, where none is given, is the clients' median."""
    if isinstance(case.rule, Mixer):
        return mixtures(case.rule, X, reference=reference)
    chosen = np.median(X, axis=0) if root is None else root
    return value(case.rule, X, reference=reference, root=chosen, layers=case.layers)


def setting(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clients, and a reference near them."""
    X = honest(K, d, seed)
    return X, X.mean(axis=0) - 2.0


def test_every_rule_and_mixer_is_here():
    assert {type(case.rule).name for case in CASES} == {entry.name for entry in RULES}
    assert {type(case.rule) for case in MIXER_CASES} == set(MIXERS)


@each(ALL, translates=True)
def test_moving_clients_and_reference_moves_the_value(case):
    X, reference = setting()
    shift = np.linspace(-20, 30, d)
    moved = outcome(case, X + shift, reference + shift)
    np.testing.assert_allclose(moved, outcome(case, X, reference) + shift, rtol=1e-6, atol=1e-6)


@each(ALL, about_reference=False)
def test_moving_clients_without_a_reference_moves_the_value(case):
    X, _ = setting()
    shift = np.linspace(-20, 30, d)
    np.testing.assert_allclose(outcome(case, X + shift), outcome(case, X) + shift, rtol=1e-6, atol=1e-6)


@each(ALL, scales=True)
@pytest.mark.parametrize("unit", [1e-4, 1e3])
def test_scaling_the_clients_scales_the_value(case, unit):
    X, reference = setting()
    np.testing.assert_allclose(outcome(case, unit * X, unit * reference), unit * outcome(case, X, reference), rtol=1e-6)


@each(ALL, permutes=True)
@pytest.mark.parametrize("seed", range(3))
def test_order_does_not_matter(case, seed):
    X, reference = setting(seed)
    order = np.random.default_rng(seed).permutation(K)
    straight, shuffled = outcome(case, X, reference), outcome(case, X[order], reference)
    np.testing.assert_allclose(shuffled, straight[order] if isinstance(case.rule, Mixer) else straight, rtol=1e-6)


@each(ALL)
def test_rotating_the_space_rotates_what_comes_from_distances(case):
    """Weights come only from the geometry, so a rotated population has the same mixing matrix."""
    X, reference = setting()
    Q, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(d, d)))
    root = np.median(X, axis=0)
    if {"signs", "updates", "buffers"} & case.rule.needs:  # what depends on the axes
        return
    straight = case.rule.mix(geometry(X, reference=reference, root=root))
    turned = case.rule.mix(geometry(X @ Q, reference=reference @ Q, root=root @ Q))
    if isinstance(case.rule, Rule):
        straight, turned = straight.matrix, turned.matrix
    np.testing.assert_allclose(turned, straight, atol=1e-6)


@each(CASES)
def test_weights_sum_to_one_unless_the_reference_has_a_share(case):
    X, reference = setting()
    mix = case.rule.mix(geometry(X, reference=reference, root=X[0], layers=case.layers))
    assert mix.matrix.shape[1] == K
    assert np.isfinite(mix.matrix).all()
    assert (mix.matrix >= 0).all()
    if not case.about_reference and not isinstance(case.rule, CenteredClipping):
        np.testing.assert_allclose(mix.matrix.sum(axis=1), 1.0)


@each(MIXER_CASES)
def test_mixtures_are_finite_and_share_at_most_one(case):
    X, reference = setting()
    A = case.rule.mix(geometry(X, reference=reference))
    assert np.isfinite(A).all()
    assert (A >= 0).all()
    assert (A.sum(axis=1) <= 1 + 1e-12).all()


@each(ALL)
def test_identical_clients_are_the_answer(case):
    x = np.linspace(-1, 1, d)
    out = np.atleast_2d(outcome(case, np.tile(x, (K, 1)), np.zeros(d)))
    np.testing.assert_allclose(out, np.tile(x, (len(out), 1)), atol=1e-6)


@each(ALL)
def test_clients_equal_to_the_reference_are_the_answer(case):
    """Nothing to divide by: every norm and every distance is 0."""
    x = np.linspace(-1, 1, d)
    out = np.atleast_2d(outcome(case, np.tile(x, (K, 1)), x))
    np.testing.assert_allclose(out, np.tile(x, (len(out), 1)), atol=1e-9)


@each(ALL, alone=True)
def test_one_client_is_the_answer(case):
    X, reference = honest(1, d), np.zeros(d)
    out = outcome(case, X, reference, root=X[0])
    if not case.about_reference or case.scales:
        np.testing.assert_allclose(np.atleast_2d(out), X, rtol=1e-9)
    assert np.isfinite(out).all()


@each(ALL, alone=False)
def test_too_few_clients_are_refused_with_the_bound(case):
    fewest = case.rule.minimum()
    case.rule.check(fewest)
    X = honest(fewest, d)
    assert np.isfinite(outcome(case, X, np.zeros(d))).all()
    with pytest.raises(ValueError, match=f"= {fewest} clients, got {fewest - 1}"):
        outcome(case, X[:-1], np.zeros(d)) if "f" in case.rule.needs else case.rule.check(fewest - 1)


@each(CASES, robust=True)
@pytest.mark.parametrize("size", [1e3, 1e12, 1e30, 1e100])
@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize("at", [0, K - 1])
def test_one_far_client_moves_the_value_little(case, size, with_reference, at):
    X, reference = setting()
    X[at] = size * np.linspace(-1, 1, d)
    others = np.delete(X, at, axis=0)
    root = np.median(others, axis=0)
    out = outcome(case, X, reference if with_reference else None, root=root)
    radius = np.linalg.norm(others - others.mean(axis=0), axis=1).max()
    start = 0.0 if with_reference or not case.about_reference else np.linalg.norm(others.mean(axis=0))
    assert np.linalg.norm(out - others.mean(axis=0)) <= radius + start + 2.0 * np.sqrt(d)


def arrangement(name: str, n: int, seed: int) -> np.ndarray:
    """n attackers, far away."""
    direction = np.random.default_rng(seed).normal(size=d)
    return {
        "one spot": np.tile(1e12 * direction, (n, 1)),
        "hiding behind larger ones": np.array([10.0 ** (12 - 2 * i) * np.eye(d)[i] for i in range(n)]),
        "apart": 1e9 * np.eye(d)[:n],
        "on both sides": np.array([1e9 * direction * (-1) ** i for i in range(n)]),
        "a hundred spreads": np.tile(1e2 * direction, (n, 1)),
    }[name]


@each(CASES, robust=True, many=True)
@pytest.mark.parametrize(
    "name", ["one spot", "hiding behind larger ones", "apart", "on both sides", "a hundred spreads"]
)
def test_many_far_clients_move_the_value_little(case, name):
    n = getattr(case.rule, "f", None) or 5
    for seed in range(2):
        X = honest(K, d, seed)
        X[-n:] = arrangement(name, n, seed)
        others = X[:-n]
        out = outcome(case, X, others.mean(axis=0) - 2.0, root=np.median(others, axis=0))
        radius = np.linalg.norm(others - others.mean(axis=0), axis=1).max()
        assert np.linalg.norm(out - others.mean(axis=0)) <= 2.0 * radius


@each(ALL)
def test_same_input_same_bits(case):
    X, reference = setting()
    np.testing.assert_array_equal(outcome(case, X, reference), outcome(case, X, reference))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(type(case.rule), bad) for case in ALL for bad in case.bad],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_bad_settings_are_refused_by_name_and_value(kind, settings):
    wrong = list(settings)[-1]
    with pytest.raises(ValueError, match=f"{kind.__name__}: {wrong} must be .*, got "):
        kind(**settings)


@each(ALL)
def test_is_a_value(case):
    assert case.rule == type(case.rule)(**{f.name: getattr(case.rule, f.name) for f in fields(case.rule)})
    with pytest.raises(AttributeError):
        case.rule.anything = 1


@each(ALL)
@pytest.mark.slow
def test_a_thousand_clients(case):
    X = honest(1000, sum(case.layers) or 40)
    assert np.isfinite(outcome(case, X, X.mean(axis=0) - 2.0)).all()
