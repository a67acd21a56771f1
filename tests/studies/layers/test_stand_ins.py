"""Stand-ins for coordinates: the recorded inner products, on random axes."""

import numpy as np
import pytest

import honestly as hn
from honestly.engine import Pipeline
from honestly.rules.align_ins import AlignIns
from honestly.rules.bulyan import Bulyan
from honestly.rules.lasa import LASA
from honestly.rules.median import Median
from honestly.rules.nnm import NNM
from honestly.rules.rlr import RLR
from honestly.rules.sign_guard import SignGuard
from honestly.studies.layers.forge import forge
from honestly.studies.layers.measure import measure
from honestly.studies.layers.stand_ins import StandIns, needs_coordinates

from .test_measure import SIZES, K, M, kappas, make_space


@pytest.fixture
def space():
    return make_space()[1]


@pytest.mark.parametrize("columns", [10, 60, 4000])
def test_inner_products_are_the_recorded_ones(space, columns):
    stand_ins = StandIns.of(space, np.random.default_rng(0), columns)
    assert (stand_ins.widths <= SIZES).all()
    forged = forge(space, "sign_flip", np.random.default_rng(0))
    sent = stand_ins.clients(forged) - stand_ins.mean
    parts = np.split(sent, stand_ins.starts[1:], axis=1)
    found = np.stack([part @ part.T for part in parts])
    np.testing.assert_allclose(found, space.grams(forged), atol=1e-9 * space.grams(forged).max())


@pytest.mark.parametrize("pre", [(), (NNM(f=3),)])
@pytest.mark.parametrize("rule", [Median(), Bulyan(f=1), RLR(), SignGuard(), LASA(), AlignIns()])
def test_the_same_as_aggregate_on_these_coordinates(space, rule, pre):
    stand_ins = StandIns.of(space, np.random.default_rng(0))
    assert stand_ins.widths.tolist() == list(SIZES), "wide enough for all values"
    forged = forge(space, "layer_noise", np.random.default_rng(0))
    score = measure(space, forged, Pipeline.of(rule, pre), stand_ins)
    sent = stand_ins.clients(forged)
    layers = {f"layer {i}": size for i, size in enumerate(SIZES)}
    out = hn.aggregate(sent, rule, pre=pre, reference=np.zeros(sent.shape[1]), layers=layers)
    whole, by_layer = kappas(out.value, sent[: K - M])
    assert score.kappa == pytest.approx(whole, rel=1e-5, abs=1e-9)
    np.testing.assert_allclose(score.by_layer, by_layer, rtol=1e-5, atol=1e-9)


def test_a_column_counts_as_the_values_it_stands_for(space):
    stand_ins = StandIns.of(space, np.random.default_rng(0), 60)
    counts = stand_ins.signs(stand_ins.clients(space.own))
    np.testing.assert_allclose(counts.sum(axis=1), sum(SIZES))


def test_rules_that_need_coordinates_are_recognised_and_refused_without_them(space):
    assert needs_coordinates([Median])
    assert needs_coordinates([NNM, SignGuard])
    assert not needs_coordinates([NNM, hn.GeometricMedian])
    with pytest.raises(ValueError, match="only inner products are known"):
        measure(space, space.own, Pipeline.of("median"))
