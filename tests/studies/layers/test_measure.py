"""What is measured by layer is what the updates themselves would show."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import honestly as hn
from honestly.engine import Pipeline
from honestly.result import Verdict
from honestly.rules.mean import Mean
from honestly.rules.nnm import NNM
from honestly.rules.rule import Mix, Rule
from honestly.rules.static_clipping import StaticClipping
from honestly.studies.layers.forge import forge
from honestly.studies.layers.measure import geometry_of, in_units, measure
from honestly.studies.layers.patterns import bound, most_tolerated, patterns
from honestly.studies.layers.search import Attacker
from honestly.studies.layers.space import LayeredPopulation, Space
from honestly.studies.recordings import read, shipped_recording

SIZES = (30, 5, 100)
K, M = 8, 3


def make_space(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1, sum(SIZES))) + rng.normal(size=(K, sum(SIZES)))
    parts = np.split(X, np.cumsum(SIZES)[:-1], axis=1)
    grams = np.stack([part @ part.T for part in parts])
    return X, Space.of(LayeredPopulation("p", grams, np.array(SIZES), K), M, rng)


def kappas(value, honest):
    """Of all columns, and of each layer."""
    gap, spread = np.square(value - honest.mean(0)), np.square(honest - honest.mean(0)).mean(0)
    cuts = np.cumsum(SIZES)[:-1]
    return gap.sum() / spread.sum(), [
        g.sum() / s.sum() for g, s in zip(np.split(gap, cuts), np.split(spread, cuts), strict=True)
    ]


@pytest.mark.parametrize("rule", [Mean(), hn.GeometricMedian()])
@pytest.mark.parametrize("pre", [(), (NNM(f=3),), (StaticClipping(radius=5.0),)])
def test_the_same_as_aggregate(rule, pre):
    X, space = make_space()
    sent = np.concatenate([X[: K - M], -4 * X[K - M :]])
    out = hn.aggregate(sent, rule, pre=pre, reference=np.zeros(X.shape[1]))
    score = measure(space, forge(space, "sign_flip", np.random.default_rng(0)), Pipeline.of(rule, pre))
    whole, layers = kappas(out.value, X[: K - M])
    assert score.kappa == pytest.approx(whole, rel=1e-5, abs=1e-9)
    np.testing.assert_allclose(score.by_layer, layers, rtol=1e-5, atol=1e-9)
    assert score.worst_layer == score.by_layer.max()


@dataclass(frozen=True, kw_only=True)
class OneLayerEach(Rule):
    """Believes another client in every layer, and accuses the first client and the last."""

    name: ClassVar[str] = "one_layer_each"
    summary: ClassVar[str] = "for tests"

    def mix(self, geometry):
        weights = np.eye(len(geometry.layers), geometry.K)
        verdicts = [Verdict.ACCUSED, *[Verdict.UNUSUAL] * (geometry.K - 2), Verdict.ACCUSED]
        return Mix.of_layers(weights, geometry.layer_sizes, honesty=np.zeros(geometry.K), verdicts=verdicts)


def test_weights_of_each_layer_are_measured_there():
    X, space = make_space()
    score = measure(space, space.own, Pipeline.of(OneLayerEach()))
    cuts = np.cumsum(SIZES)[:-1]
    value = np.concatenate([np.split(X[k], cuts)[k] for k in range(3)])
    whole, layers = kappas(value, X[: K - M])
    assert score.kappa == pytest.approx(whole)
    np.testing.assert_allclose(score.by_layer, layers)
    assert (score.false, score.missed) == (1, M - 1), "a verdict counts, not the honesty beside it"


def test_layers_without_a_unit():
    moved, variance = np.array([2.0, 2.0, 0.0, 0.1]), np.array([4.0, 0.0, 0.0, 1e-9])
    found = in_units(moved, variance, squared=np.array([1.0, 0.0, 0.0, 0.2]))
    assert found.tolist() == [0.5, np.inf, 0.0, 0.5]


def test_the_geometry_knows_where_the_reference_lies():
    X, space = make_space()
    towards, squared = space.towards_mean(space.own), space.products[:, space.n, space.n]
    geometry = geometry_of(space.grams(space.own), towards, squared, SIZES)
    np.testing.assert_allclose(geometry.gram_about_reference, X @ X.T, atol=1e-9)
    assert geometry.layer_sizes.tolist() == list(SIZES)


def test_nobody_lies():
    space = Space.of(LayeredPopulation.of(read(shipped_recording())[0], 2), 0, np.random.default_rng(0))
    score = measure(space, np.zeros((0, space.b)), Pipeline.of("mean"))
    assert score.kappa == pytest.approx(0.0, abs=1e-12)
    assert (score.false, score.missed, len(score.accused)) == (0, 0, 20)


# ---- the attacker that searches


def test_the_search_improves_on_its_start_and_is_reproducible():
    _, space = make_space()
    fixed = max(measure(space, forge(space, spec, np.random.default_rng(0)), Pipeline.of("geometric_median")).kappa
                for spec in ("alie", "ipm:epsilon=2", "mimic", "layer_duplicates"))  # fmt: skip
    attacker = Attacker(space, Pipeline.of("geometric_median"), tries=80)
    first, again = (attacker.search(np.random.default_rng(1)) for _ in range(2))
    assert first.value == again.value > 0.9 * fixed
    assert first.tries == 80


def test_it_puts_its_effort_into_one_layer_if_that_is_the_goal():
    space = Space.of(LayeredPopulation.of(read(shipped_recording())[0], 2), 4, np.random.default_rng(0))
    whole, worst = (
        Attacker(space, Pipeline.of("geometric_median"), goal, 80).search(np.random.default_rng(0))
        for goal in ("whole", "worst")
    )
    assert worst.value > 3 * whole.score.worst_layer or worst.value > whole.score.worst_layer > 100
    assert worst.value == worst.score.worst_layer
    assert whole.value == whole.score.kappa


def test_the_mean_has_no_bound():
    _, space = make_space()
    assert Attacker(space, Pipeline.of("mean"), tries=40).search(np.random.default_rng(0)).value > 1e3


@pytest.mark.parametrize(("settings", "message"), [({"goal": "all"}, "goal = 'all'"), ({"tries": 0}, "tries = 0")])
def test_what_cannot_be_searched(settings, message):
    with pytest.raises(ValueError, match=message):
        Attacker(make_space()[1], Pipeline.of("mean"), **settings)


# ---- copy patterns


def test_the_bound_is_the_theorems():
    assert [most_tolerated(n) for n in (3, 4, 5, 10, 20)] == [1, 1, 2, 4, 9]
    assert bound(20, 9) == 4.5
    assert bound(5, 2) == 2.0


@pytest.mark.parametrize(("n", "f"), [(5, 1), (5, 2), (10, 4)])
def test_patterns_are_centred_on_the_honest_mean_with_their_variance(n, f):
    found = list(patterns(n, f, np.random.default_rng(0)))
    assert len({p.name for p in found}) == len(found) > 300
    for pattern in found[::50]:
        honest = pattern.updates[: n - f]
        assert len(pattern.updates) == n
        np.testing.assert_allclose(honest.mean(0), 0.0, atol=1e-9)
        assert pattern.variance == pytest.approx(np.square(honest).sum(1).mean())
    names = " ".join(p.name for p in found)
    assert all(word in names for word in ("idle", "camps", "mimics", "copies with noise"))


def test_copies_of_the_mean_reach_the_bound():
    """n - fh points at 0 and fh at 1: if f of the zeros lie, the error of the answer 0 equals the bound."""
    n, f = 20, 8
    most = most_tolerated(n)
    X = np.zeros((n, 1))
    X[n - f - most : n - f] = 1.0
    honest = X[: n - f]
    assert honest.mean() ** 2 / honest.var() == pytest.approx(bound(n, f))
