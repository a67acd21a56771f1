"""Whom the Bayesian rule accuses, what it says of the others, and its settings."""

from __future__ import annotations

import numpy as np
import pytest

import honestly as hn
from honestly.engine.streaming import STREAM_FROM
from honestly.result import Status, Verdict
from honestly.rules.bayesian import Bayesian
from honestly.rules.bayesian.average import copies
from honestly.rules.bayesian.likeness import companion
from honestly.rules.rule import GramGeometry

from .bayesian_rounds import K, by_layer, d, federation, measure
from .clients import geometry


def test_nobody_is_accused_without_attackers_and_the_mean_is_nearly_the_answer():
    for seed in range(50):
        found, mix = measure(federation(0, "none", seed), 0)
        assert set(mix.verdicts) == {Verdict.TRUSTED}
        assert found < 1e-3
        assert mix.status is Status.CONVERGED


def test_near_identical_updates_are_named():
    X = federation(4, "copies")
    mix = Bayesian().mix(geometry(X, ids=[f"c{k}" for k in range(K)]))
    assert mix.diagnostics["groups"] == (("c16", "c17", "c18", "c19"),)
    assert Bayesian().mix(geometry(federation(4, "noise"))).diagnostics["groups"] == ()


def test_accusations_name_the_others():
    mix = Bayesian().mix(geometry(federation(4, "shifted cluster", spread=3.0), ids=[f"c{k}" for k in range(K)]))
    assert mix.explanations[16] == "it errs in the same direction as c17, c18, c19"
    assert [str(verdict) for verdict in mix.verdicts] == ["trusted"] * 16 + ["accused"] * 4


def test_client_names_are_escaped():
    ids = [f"c{k}\x1b[2J\n" for k in range(K)]
    mix = Bayesian().mix(geometry(federation(4, "shifted cluster", spread=3.0), ids=ids))
    assert all(sentence.isprintable() for sentence in mix.explanations)


def test_the_status_warns_when_more_than_half_err_alike():
    X = federation(0, "none")
    X[:10] += 8.0 * np.random.default_rng(1).normal(size=d) / np.sqrt(d)
    X[10:] += 8.0 * np.random.default_rng(2).normal(size=d) / np.sqrt(d)
    mix = Bayesian().mix(geometry(X))
    assert (mix.honesty < 0.5).sum() <= 9


def test_diagnostics_for_plots():
    found = Bayesian().mix(geometry(federation(4, "shifted cluster", spread=5.0))).diagnostics
    names = {"groups", "evidence", "votes", "spread", "eps", "layers", "layer_names", "guarded_layers"}
    assert set(found) == names
    assert found["evidence"].shape == found["votes"].shape == (K,)
    assert found["evidence"][16:].max() < 0 < found["evidence"][:16].min()
    assert 0.7 < found["spread"] < 1.3
    assert abs(found["eps"] - 0.2) < 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "other"}, "Bayesian: variant must be .* got 'other'"),
        ({"scale_free": "yes"}, "scale_free must be True or False, got 'yes'"),
        ({"at_most": 0.5}, "at_most .*0.5"),
        ({"at_most": -0.1}, "at_most .*-0.1"),
        ({"at_most": 0.2, "variant": "paper"}, "at_most must be None"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Bayesian(**settings)


def test_a_ceiling_on_the_liars():
    assert [Bayesian(at_most=0.2).tolerated(n) for n in (3, 5, 10, 20, 21)] == [0, 1, 2, 4, 4]
    assert [Bayesian().tolerated(n) for n in (3, 5, 10, 20, 21)] == [1, 2, 4, 9, 10]
    X = federation(4, "shifted cluster", spread=3.0)
    mix = Bayesian(at_most=0.2).mix(geometry(X))
    assert set(np.flatnonzero(mix.honesty < 0.5)) == {16, 17, 18, 19}
    np.testing.assert_allclose(Bayesian(at_most=0.0).mix(geometry(X)).matrix, 1 / K)


def test_a_single_client_cannot_err_alike():
    """Evidence against a single client, however large, is limited by that against its best companion."""
    x = np.array([[9.0, -3.0, -10.0], [9.0, 4.0, 9.0]])
    assert np.minimum(x, companion(x)).tolist() == [[-3.0, -3.0, -10.0], [9.0, 4.0, 9.0]]


@pytest.mark.parametrize("distance", [5.0, 75.0, 1000.0])
def test_nine_far_liars_are_accused_and_nobody_of_the_majority(distance):
    """An honest client that leans towards them is within the majority: it must not make a tenth, a contradiction."""
    X = federation(0, "none")
    lie = np.random.default_rng(3).normal(size=d) / np.sqrt(d)
    X[5] += 0.7 * lie
    X[11:] = X[11:].mean(0) + 0.1 * (X[11:] - X[11:].mean(0)) + distance * lie
    mix = Bayesian().mix(geometry(X))
    assert set(np.flatnonzero(mix.honesty < 0.5)) == set(range(11, 20))


@pytest.mark.parametrize("distance", [15.0, 75.0, 1000.0])
def test_a_small_error_that_points_to_large_lies_is_no_lie(distance):
    """What liars far away do says nothing about a client whose own error is hardly larger than the others'."""
    X = federation(0, "none")
    lie = np.random.default_rng(3).normal(size=d) / np.sqrt(d)
    X[5] += 1.5 * lie
    X[16:] += distance * lie
    mix = Bayesian().mix(geometry(X))
    assert set(np.flatnonzero(mix.honesty < 0.5)) == set(range(16, 20))
    X[6] += 1.5 * lie  # a second one, and now two of a length err alike
    assert set(np.flatnonzero(Bayesian().mix(geometry(X)).honesty < 0.5)) == {5, 6, *range(16, 20)}


def test_nobody_is_accused_if_more_than_f_look_guilty():
    """Five err alike in one layer and five others in another, f = 9: ten look guilty, which is impossible."""
    X = federation(0, "none")
    rng = np.random.default_rng(4)
    X[10:15, :200] += 3.0 * rng.normal(size=200) / np.sqrt(d)
    five = Bayesian().mix(by_layer(X, [200, 200]))
    assert set(np.flatnonzero(five.honesty < 0.5)) == set(range(10, 15))
    X[15:20, 200:] += 3.0 * rng.normal(size=200) / np.sqrt(d)
    ten = Bayesian().mix(by_layer(X, [200, 200]))
    assert ten.status is Status.MAJORITY_BOUND
    assert "nobody was accused" in str(ten.status)
    assert (ten.honesty >= 0.5).all()


@pytest.mark.parametrize("few", [3, 4, 5])
def test_rounding_does_not_change_verdicts_among_few_clients(few):
    """One far client, any order, values changed in their last bits: the same answer and the same verdicts."""
    rng = np.random.default_rng(few)
    for far in (1.0, 3.0, 100.0, 1e4):
        X = rng.normal(size=(few, 50)) + 10.0 * rng.normal(size=50)
        X[-1] *= far
        one = Bayesian().mix(GramGeometry(X @ X.T))
        for _ in range(5):
            order = rng.permutation(few)
            Y = (X * (1.0 + 1e-14 * rng.normal(size=X.shape)))[order]
            other = Bayesian().mix(GramGeometry(Y @ Y.T))
            np.testing.assert_allclose(other.matrix[0], one.matrix[0][order], atol=1e-6)
            assert [other.verdicts[i] for i in range(few)] == [one.verdicts[k] for k in order]


def test_copies_are_found_if_rounding_sees_only_one_of_two_near_the_other() -> None:
    distances = np.array([[0.0, 1.0, 9.0], [2.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
    assert copies(distances, 150.0) == copies(distances.T, 150.0) == ((0, 1),)


def test_an_unusual_client_is_explained_by_a_layer_that_is_judged():
    rng = np.random.default_rng(0)
    clients = [{"conv.weight": rng.normal(size=300), "bn.running_var": rng.uniform(0.9, 1.1, 20)} for _ in range(10)]
    for k in (3, 5):
        clients[k]["bn.running_var"] = 1000 * clients[k]["bn.running_var"]
    clients[3]["conv.weight"] = 20 * clients[3]["conv.weight"]
    out = hn.aggregate(clients)
    assert [str(verdict) for verdict in out.verdicts] == ["trusted"] * 3 + ["unusual"] + ["trusted"] * 6
    assert out.explanations[3].startswith("its update is 19 times as far from the others as usual in conv, alone")


@pytest.mark.parametrize("clients", [7, STREAM_FROM])
@pytest.mark.parametrize("layers", [None, [30, 20]])
def test_who_sent_another_update_than_an_identical_majority_is_unusual(clients, layers):
    """Its weight is 0, so it was not trusted, and its update is not like the others'."""
    X = np.zeros((clients, 50))
    X[0], X[1] = 1e6, np.random.default_rng(0).normal(size=50)
    out = hn.aggregate(X, layers=layers)
    assert out.status is Status.MAJORITY_IDENTICAL
    assert out.verdicts == (Verdict.UNUSUAL,) * 2 + (Verdict.TRUSTED,) * (clients - 2)
    assert "not the one that a majority sent" in out.explanations[0]
    assert out.explanations[2] == "its update is like the others'"
    assert out.accused == ()


@pytest.mark.parametrize("size", [50, 20_000])  # by NumPy, and by the program
def test_layers_in_which_a_majority_sent_the_same(size):
    """Who changed what the others left alone is unusual, as its weight there says; who is accused has no weight."""
    rng = np.random.default_rng(0)
    clients = [
        {"frozen": np.ones(100), "head": rng.normal(size=size), "bn.running_mean": np.ones(4)} for _ in range(20)
    ]
    lie = 3 * rng.normal(size=size)
    for k in range(4):
        clients[k]["head"] += lie
    clients[3]["frozen"] = clients[9]["frozen"] = np.zeros(100)
    clients[8]["bn.running_mean"] = np.zeros(4)  # nobody is judged by it
    out = hn.aggregate(clients)
    assert out.accused == (0, 1, 2, 3)
    assert [k for k in range(20) if out.verdicts[k] is Verdict.UNUSUAL] == [9]
    assert out.explanations[9].startswith("its update is not the one that a majority sent in frozen")
    assert out.explanations[3].startswith("it errs in the same direction as 0, 1, 2")
    np.testing.assert_array_equal(out.weights[:4], 0.0)
    np.testing.assert_allclose(out.value["frozen"], 1.0, rtol=1e-12)
