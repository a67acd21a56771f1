"""The Bayesian rule: equivariance, breakdown, layers, small and degenerate rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from honestly.result import Status, Verdict
from honestly.rules.bayesian import Bayesian
from honestly.rules.rule import GramGeometry

from .bayesian_rounds import K, by_layer, d, federation, measure
from .clients import geometry

# ------------------------------------------------------------------ equivariance

ATTACKS = [
    (0, "none", 1.0),
    (4, "noise", 3.0),
    (8, "copies", 1.0),
    (9, "sign flip", 2.0),
    (7, "collusion with jitter", 1.0),
]


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize(("M", "attack", "spread"), ATTACKS)
def test_the_unit_does_not_matter(M, attack, spread, unit):
    X = federation(M, attack, spread=spread)
    one, other = Bayesian().mix(geometry(X)), Bayesian().mix(geometry(unit * X))
    np.testing.assert_allclose(other.honesty, one.honesty, atol=1e-6)
    np.testing.assert_allclose(other.matrix, one.matrix, atol=1e-7)


@given(seed=st.integers(0, 10_000), which=st.sampled_from(ATTACKS))
def test_origin_axes_and_order_do_not_matter(seed, which):
    M, attack, spread = which
    X = federation(M, attack, seed, spread=spread)[:, :60]
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(60, 60)))
    order = rng.permutation(K)
    moved = (X @ Q + 5.0 * rng.normal(size=60))[order]
    one = Bayesian().mix(geometry(X)).matrix[0] @ X
    other = Bayesian().mix(geometry(moved)).matrix[0] @ X[order]
    np.testing.assert_allclose(other, one, atol=1e-5)


# ------------------------------------------------------------------ robustness


@pytest.mark.parametrize("far", [1e3, 1e6, 1e12, 1e20, 1e30])
@pytest.mark.parametrize("how", ["copies", "each elsewhere", "a cloud"])
@pytest.mark.parametrize(("clients", "M"), [(20, 9), (20, 4), (7, 3), (3, 1), (51, 25)])
def test_no_minority_moves_the_answer_from_any_distance(far, how, clients, M):
    rng = np.random.default_rng(1)
    X = federation(0, "none", clients=clients)
    away = rng.normal(size=d)
    X[clients - M :] = {
        "copies": np.tile(away, (M, 1)),
        "each elsewhere": rng.normal(size=(M, d)),
        "a cloud": away + 0.1 * rng.normal(size=(M, d)),
    }[how] * far
    found, mix = measure(X, M)
    assert found < 0.05
    assert (mix.honesty[: clients - M] >= 0.5).all()
    assert all(verdict is not Verdict.TRUSTED for verdict in mix.verdicts[clients - M :])
    if clients > 4 and far > 1e3:
        assert mix.honesty[clients - M :].max() < 0.01  # nobody is a million spreads behind


def test_a_majority_does_move_it():
    """The breakdown point is one half, which shows that the test above can fail."""
    X = federation(0, "none")
    X[8:] += 1e3
    assert measure(X, 12)[0] > 1e5


@pytest.mark.parametrize(
    ("attack", "spread", "M", "bound"),
    [
        ("copies", 0.5, 9, 0.05),
        ("copies", 1.0, 9, 0.05),
        ("copies", 3.0, 9, 0.02),
        ("noise", 2.0, 8, 0.05),
        ("noise", 10.0, 9, 0.05),
        ("sign flip", 2.0, 8, 0.05),
        ("sign flip", 4.0, 9, 0.05),
        ("collusion with jitter", 1.0, 8, 0.2),
        ("shifted cluster", 2.0, 8, 0.01),
        ("shifted cluster", 2.0, 9, 0.01),
    ],
)
def test_attacks_that_defeat_the_published_rule_or_the_mean(attack, spread, M, bound):
    found = [measure(federation(M, attack, seed, spread=spread), M)[0] for seed in range(5)]
    assert max(found) < bound


def test_any_number_of_copies_has_one_vote():
    """With two copies or nine, the answer moves by about the share of one client."""
    for M in (2, 5, 9):
        X = federation(M, "copies", spread=1.0)
        weights = Bayesian().mix(geometry(X)).matrix[0]
        assert weights[K - M :].sum() <= 2.0 / (K - M + 1)


def test_similar_errors_are_accused_and_long_updates_are_not():
    X = federation(6, "shifted cluster", spread=2.0)
    assert set(np.flatnonzero(Bayesian().mix(geometry(X)).honesty < 0.5)) == set(range(14, 20))
    X = federation(0, "none")
    X[12:] += 20.0 * np.random.default_rng(1).normal(size=(8, d)) / np.sqrt(d)  # eight laggards, each on its own
    found, mix = measure(X, 8)
    assert (mix.honesty > 0.5).all()
    assert all(verdict is Verdict.UNUSUAL for verdict in mix.verdicts[12:])
    assert all(verdict is Verdict.TRUSTED for verdict in mix.verdicts[:12])
    assert found < 0.05


def test_a_single_client_that_opposes_the_others_is_accused_with_a_reference():
    X = federation(1, "sign flip", spread=4.0)
    about = GramGeometry(X @ X.T, has_reference=True)
    mix = Bayesian().mix(about)
    assert [k for k in range(K) if mix.verdicts[k] is Verdict.ACCUSED] == [19]
    assert "opposes" in mix.explanations[19]
    assert Bayesian().mix(GramGeometry(X @ X.T)).verdicts[19] is Verdict.UNUSUAL  # the origin means nothing here


# ------------------------------------------------------------------ layers


def test_an_attack_in_one_small_layer_is_seen_there():
    """Whole updates hide it: the layer is 2 % of the squared distances."""
    X = federation(0, "none")
    X[:, :40] *= 0.15
    X[12:, :40] += 0.15 * 2.0 * np.random.default_rng(5).normal(size=40) / np.sqrt(d)
    whole = Bayesian().mix(geometry(X))
    assert (whole.honesty > 0.5).all()
    mix = Bayesian().mix(by_layer(X, [40, 360], layer_names=("head", "body")))
    assert set(np.flatnonzero(mix.honesty < 0.5)) == set(range(12, 20))
    assert "most of all in head" in mix.explanations[15]
    assert mix.diagnostics["layers"].shape == (K, 2)
    assert mix.diagnostics["layers"][12:, 0].min() > 0 > mix.diagnostics["layers"][:, 1].max()


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_the_unit_of_a_layer_does_not_matter(unit):
    X = federation(7, "collusion with jitter", spread=2.0)
    sizes = [100, 50, 250]
    one = Bayesian().mix(by_layer(X, sizes))
    scaled = X.copy()
    scaled[:, 100:150] *= unit
    other = Bayesian().mix(by_layer(scaled, sizes))
    np.testing.assert_allclose(other.by_layer, one.by_layer, atol=1e-6)
    np.testing.assert_allclose(other.honesty, one.honesty, atol=1e-6)


@pytest.mark.parametrize("sizes", [[400], [1] * 400, [399, 1], [100, 100, 200]])
@pytest.mark.parametrize("far", [1e3, 1e12])
def test_no_layer_can_be_moved_without_bound(sizes, far):
    X = federation(0, "none")
    edges = np.cumsum([0, *sizes])
    rng = np.random.default_rng(3)
    for M in (1, 5, 9):
        for layer in {0, len(sizes) // 2, len(sizes) - 1}:
            columns = slice(edges[layer], edges[layer + 1])
            Y = X.copy()
            Y[K - M :, columns] = far * rng.normal(size=(1, sizes[layer]))
            mix = Bayesian().mix(by_layer(Y, sizes))
            H = Y[: K - M, columns]
            error = mix.by_layer[layer] @ Y[:, columns] - H.mean(axis=0)
            f = (K - 1) // 2
            assert error @ error <= 1.02 * f / (K - M - f) * ((H - H.mean(axis=0)) ** 2).sum(axis=1).mean()


def test_empty_layers_and_layers_that_most_clients_do_not_change():
    X = federation(0, "none")
    X[:, :50] = 0.0  # nobody has values there
    X[:, 50:100] = 1.0  # all agree but one
    X[19, 50:100] = 1e6
    mix = Bayesian().mix(by_layer(X, [50, 50, 300]))
    np.testing.assert_allclose(mix.by_layer[1] @ X[:, 50:100], 1.0, atol=1e-9)
    np.testing.assert_allclose(mix.by_layer.sum(axis=1), 1.0)
    assert np.isfinite(mix.matrix).all()


def test_buffers_do_not_affect_verdicts_and_cannot_be_moved():
    X = federation(0, "none")
    X[12:, 300:] += 1e6 * np.random.default_rng(1).normal(size=100)
    mix = Bayesian().mix(by_layer(X, [300, 100], judged=np.array([True, False])))
    assert (mix.honesty > 0.5).all()
    assert np.isnan(mix.diagnostics["layers"][:, 1]).all()
    H = X[:12, 300:]
    error = mix.by_layer[1] @ X[:, 300:] - H.mean(axis=0)
    assert error @ error <= 3.01 * ((H - H.mean(axis=0)) ** 2).sum(axis=1).mean()


def test_half_of_the_clients_idle():
    """Nine or ten send nothing new, six lie: nobody honest is accused, and the answer stays within the bound."""
    for idle, M in ((10, 0), (9, 6), (5, 8)):
        X = federation(0, "none")
        X[:idle] = 0.0
        X[K - M :] = 30.0 * np.random.default_rng(2).normal(size=(M, d)) / np.sqrt(d) if M else X[K - M :]
        found, mix = measure(X, M)
        assert (mix.honesty[: K - M] >= 0.5).all()
        assert found <= 9 / (K - M - 9) * 1.01


# ------------------------------------------------------------------ small and degenerate rounds


def test_one_client_is_the_answer_and_two_are_averaged():
    for clients in (1, 2):
        X = federation(0, "none", clients=clients)
        mix = Bayesian().mix(geometry(X))
        np.testing.assert_allclose(mix.matrix[0], 1 / clients)
        np.testing.assert_array_equal(mix.honesty, 1.0)
        assert mix.status is Status.CLOSED_FORM


def test_three_clients_two_agree():
    X = federation(0, "none", clients=3)
    X[1] = X[0] + 0.2 * (X[1] - X[0])
    X[2] += 10.0
    mix = Bayesian().mix(geometry(X))
    assert mix.matrix[0, 2] < 0.01
    assert mix.verdicts == (Verdict.TRUSTED, Verdict.TRUSTED, Verdict.UNUSUAL)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-30, 1e30])
def test_all_identical(value):
    mix = Bayesian().mix(geometry(np.full((6, 5), value)))
    np.testing.assert_allclose(mix.matrix[0], 1 / 6)
    np.testing.assert_array_equal(mix.honesty, 1.0)
    assert mix.status is Status.MAJORITY_IDENTICAL


def test_an_identical_majority_is_the_answer():
    X = federation(0, "none", clients=9)
    X[:5] = X[0]
    mix = Bayesian().mix(geometry(X))
    assert mix.status is Status.MAJORITY_IDENTICAL
    np.testing.assert_allclose(mix.matrix[0] @ X, X[0])
    np.testing.assert_array_equal(mix.honesty, 1.0)  # the others moved, which is no lie


def test_one_dimension():
    X = np.array([[0.0], [0.1], [0.2], [0.3], [0.5], [0.45], [40.0], [-90.0]])
    mix = Bayesian().mix(geometry(X))
    assert (mix.honesty[:6] >= 0.5).all()
    assert all(verdict is not Verdict.TRUSTED for verdict in mix.verdicts[6:])
    assert 0.1 < (mix.matrix @ X).item() < 0.45


@given(
    X=st.integers(1, 12).flatmap(
        lambda k: st.lists(
            st.lists(st.sampled_from([0.0, 1.0, -1.0, 3.0, 1e-9, 1e9]), min_size=2, max_size=2), min_size=k, max_size=k
        )
    )
)
def test_any_arrangement_gives_weights_and_probabilities(X):
    """Ties, duplicates, lines, coinciding groups: never NaN, never a division by zero."""
    mix = Bayesian().mix(geometry(X))
    assert np.isclose(mix.matrix.sum(), 1.0)
    assert (mix.matrix >= 0).all()
    assert ((mix.honesty >= 0) & (mix.honesty <= 1)).all()
