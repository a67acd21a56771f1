"""The Bayesian rule: equivariance, breakdown, layers, small and degenerate rounds, diagnostics, streaming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from honestly.result import Status, Verdict
from honestly.rules.bayesian import Bayesian
from honestly.rules.bayesian.average import copies
from honestly.rules.bayesian.likeness import companion
from honestly.rules.rule import GramGeometry

from .clients import geometry

K, d = 20, 400


def federation(M: int, attack: str, seed: int = 0, clients: int = K, spread: float = 1.0) -> np.ndarray:
    """Honest clients around a common mean, the last M of them malicious."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(clients, d)) / np.sqrt(d)
    mean = rng.normal(size=d) / np.sqrt(d)
    X = mean + noise
    bad = slice(clients - M, clients)
    direction = rng.normal(size=d) / np.sqrt(d)
    if attack == "copies":
        X[bad] = mean + spread * direction
    elif attack == "sign flip":
        X[bad] *= -spread
    elif attack == "noise":
        X[bad] = mean + spread * noise[bad]
    elif attack == "collusion with jitter":
        X[bad] = mean + spread * direction + 0.25 * noise[bad]
    elif attack == "shifted cluster":
        X[bad] += spread * direction
    else:
        assert attack == "none"
    return X


def kappa(X: np.ndarray, M: int, weights: np.ndarray) -> float:
    """|aggregate - honest mean|^2 / honest variance, without overflow for huge entries."""
    H = X[: len(X) - M]
    e = weights.copy()
    e[: len(H)] -= 1.0 / len(H)
    error = e[: len(H)] @ H + e[len(H) :] @ X[len(H) :]
    return float(error @ error / ((H - H.mean(axis=0)) ** 2).sum(axis=1).mean())


def measure(X: np.ndarray, M: int, rule: Bayesian | None = None):
    mix = (rule or Bayesian()).mix(geometry(X))
    return kappa(X, M, mix.matrix[0]), mix


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


def by_layer(X: np.ndarray, sizes: list[int], **more) -> GramGeometry:
    parts = np.split(X - np.median(X, axis=0), np.cumsum(sizes)[:-1], axis=1)
    return GramGeometry.of_layers(
        np.stack([P @ P.T for P in parts]), layer_sizes=np.array(sizes, dtype=np.float64), **more
    )


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


# ------------------------------------------------------------------ diagnostics


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


# ------------------------------------------------------------------ thousands of clients, from passes over the data


@dataclass
class Streaming:
    """A geometry that has no Gram matrix of all clients and counts its passes."""

    X: np.ndarray
    passes: int = 0
    streaming: bool = True
    has_reference: bool = False
    ids: tuple = ()
    sizes: None = None
    judged = np.array([True])
    layer_names = ("",)
    layer_sizes = np.array([float(d)])

    @property
    def K(self) -> int:
        return len(self.X)

    def layer_residuals(self, a):
        self.passes += 1
        rows = np.atleast_2d(a) @ self.X
        r2 = (self.X**2).sum(1) - 2 * rows @ self.X.T + (rows**2).sum(1)[:, None]
        return np.maximum(r2, 0.0)[:, None, :]

    def subset(self, clients):
        self.passes += 1
        few = self.X[np.asarray(clients)]
        return GramGeometry(few @ few.T)


@pytest.mark.parametrize(
    ("attack", "spread"),
    [("none", 1.0), ("noise", 3.0), ("sign flip", 4.0), ("copies", 1.0), ("copies", 50.0), ("shifted cluster", 3.0)],
)
@pytest.mark.parametrize("clients", [30, 700])
def test_streaming_agrees_with_the_gram_matrix(attack, spread, clients):
    M = 0 if attack == "none" else int(0.4 * clients)
    X = federation(M, attack, spread=spread, clients=clients)
    stream = Streaming(X)
    a, b = Bayesian().mix(stream), Bayesian().mix(geometry(X))
    assert stream.passes == 2
    assert ((a.honesty < 0.5) != (b.honesty < 0.5)).mean() < 0.01
    assert kappa(X, M, a.matrix[0]) < 0.05
    assert [len(group) for group in a.diagnostics["groups"]] == ([M] if attack == "copies" else [])


def test_streaming_accuses_nobody_of_a_small_error_that_points_to_large_lies():
    X = federation(0, "none", clients=600)
    lie = np.random.default_rng(3).normal(size=d) / np.sqrt(d)
    X[5] += 1.5 * lie
    X[500:] += 75.0 * lie
    assert set(np.flatnonzero(Bayesian().mix(Streaming(X)).honesty < 0.5)) == set(range(500, 600))


def test_streaming_is_deterministic_and_small_rounds_work():
    X = federation(200, "noise", clients=600, spread=3.0)
    np.testing.assert_array_equal(Bayesian().mix(Streaming(X)).matrix, Bayesian().mix(Streaming(X)).matrix)
    for clients in (1, 2, 3, 5):
        assert np.isclose(Bayesian().mix(Streaming(federation(0, "none", clients=clients))).matrix.sum(), 1.0)
    same = Bayesian().mix(Streaming(np.ones((40, 3))))
    assert same.status is Status.MAJORITY_IDENTICAL


# ------------------------------------------------------------------ verdicts and centres


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
