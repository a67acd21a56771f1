"""The Bayesian rule: equivariance, breakdown, small and degenerate rounds, truthfulness, streaming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from honestly.result import Status
from honestly.rules.base import GramGeometry
from honestly.rules.bayesian import Bayesian

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
    """|aggregate - honest mean|^2 / honest variance, with care for huge entries."""
    H = X[: len(X) - M]
    e = weights.copy()
    e[: len(H)] -= 1.0 / len(H)
    error = e[: len(H)] @ H + e[len(H) :] @ X[len(H) :]
    return float(error @ error / ((H - H.mean(axis=0)) ** 2).sum(axis=1).mean())


def measured(X: np.ndarray, M: int, rule: Bayesian | None = None):
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
    found, mix = measured(X, M)
    assert found < 0.02
    assert mix.honesty[clients - M :].max() < 1e-6
    assert (mix.honesty[: clients - M] > 0.5).all()


def test_a_majority_does_move_it():
    """The breakdown point is one half, so that the test above could fail."""
    X = federation(0, "none")
    X[8:] += 1e3
    assert measured(X, 12)[0] > 1e5


@pytest.mark.parametrize(
    ("attack", "spread", "M", "bound"),
    [
        ("copies", 0.5, 9, 0.01),
        ("copies", 1.0, 9, 0.02),
        ("copies", 3.0, 9, 0.02),
        ("noise", 2.0, 8, 0.03),
        ("noise", 10.0, 9, 0.01),
        ("sign flip", 2.0, 8, 0.05),
        ("sign flip", 4.0, 9, 0.01),
        ("collusion with jitter", 1.0, 8, 0.12),
        ("shifted cluster", 2.0, 8, 0.01),
        ("shifted cluster", 2.0, 9, 0.01),
    ],
)
def test_attacks_that_the_published_rule_or_the_mean_fall_for(attack, spread, M, bound):
    found = [measured(federation(M, attack, seed, spread=spread), M)[0] for seed in range(5)]
    assert max(found) < bound


def test_copies_have_one_vote_whatever_their_number():
    """Two copies or nine: the answer moves by one client's share."""
    for M in (2, 5, 9):
        X = federation(M, "copies", spread=1.0)
        weights = Bayesian().mix(geometry(X)).matrix[0]
        assert weights[K - M :].sum() <= 1.5 / (K - M + 1)


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
    assert mix.honesty[2] < 0.01 < 0.9 < mix.honesty[:2].min()


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
    np.testing.assert_array_equal(mix.honesty, [1.0] * 5 + [0.0] * 4)


def test_one_dimension():
    X = np.array([[0.0], [0.1], [0.2], [0.3], [0.5], [0.45], [40.0], [-90.0]])
    mix = Bayesian().mix(geometry(X))
    assert mix.honesty[6:].max() < 0.01 < 0.5 < mix.honesty[:6].min()
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


# ------------------------------------------------------------------ what it tells


def test_nobody_is_accused_without_attackers_and_the_mean_is_the_answer():
    accused = 0
    for seed in range(50):
        X = federation(0, "none", seed)
        found, mix = measured(X, 0)
        accused += int((mix.honesty < 0.5).sum())
        assert found < 1e-3
        assert mix.status is Status.CONVERGED
    assert accused == 0


@pytest.mark.parametrize("M", [1, 4, 8])
@pytest.mark.parametrize(("attack", "spread"), [("noise", 4.0), ("sign flip", 4.0), ("copies", 1.0)])
def test_the_number_of_malicious_clients_is_estimated(M, attack, spread):
    if (M, attack) == (1, "copies"):
        return  # one client alone is no copy
    mix = Bayesian().mix(geometry(federation(M, attack, spread=spread)))
    inferred = K - mix.honesty.sum()
    at_most_one_opinion = 1.0 if attack == "copies" else 0.0
    assert abs(inferred - (M - at_most_one_opinion)) < 0.8


def test_groups_are_named():
    X = federation(4, "copies")
    mix = Bayesian().mix(geometry(X, ids=[f"c{k}" for k in range(K)]))
    assert mix.diagnostics["groups"] == (("c16", "c17", "c18", "c19"),)
    np.testing.assert_allclose(mix.honesty[16:], mix.honesty[16] * np.ones(4))
    assert mix.honesty[16] <= 0.25
    assert Bayesian().mix(geometry(federation(4, "noise"))).diagnostics["groups"] == ()


def test_probabilities_are_calibrated():
    """Of clients given a probability, about that share is honest; checked where attackers can be seen at all."""
    told, truth = [], []
    rng = np.random.default_rng(0)
    for seed in range(300):
        M = int(rng.integers(0, 9))
        X = federation(M, "noise", seed, spread=float(rng.uniform(1.3, 3.0)))
        X = X.mean(axis=0) + (X - X.mean(axis=0)) * np.exp(0.2 * rng.normal(size=(K, 1)))  # honest spreads differ
        told.append(Bayesian().mix(geometry(X)).honesty)
        truth.append(np.arange(K) < K - M)
    p, y = np.concatenate(told), np.concatenate(truth)
    assert y[p < 0.2].mean() < 0.15
    assert y[p > 0.8].mean() > 0.85
    between = (p > 0.2) & (p < 0.8)
    assert 0.1 < y[between].mean() < 0.9
    assert (p[y] < 0.5).mean() < 0.04


def test_the_status_warns_when_nearly_half_look_dishonest():
    mix = Bayesian().mix(geometry(federation(9, "noise", spread=5.0)))
    assert mix.status is Status.MAJORITY_BOUND
    assert not mix.status.ok
    assert mix.honesty.sum() >= 11 - 1e-6
    assert Bayesian().mix(geometry(federation(4, "noise", spread=5.0))).status is Status.CONVERGED


def test_diagnostics_for_plots():
    found = Bayesian().mix(geometry(federation(4, "noise", spread=5.0))).diagnostics
    assert set(found) == {"groups", "evidence", "votes", "spread", "eps"}
    assert found["evidence"].shape == found["votes"].shape == (K,)
    assert found["evidence"][16:].max() < 0 < found["evidence"][:16].min()
    assert 0.7 < found["spread"] < 1.3
    assert abs(found["eps"] - 0.2) < 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "other"}, "Bayesian: variant must be .* got 'other'"),
        ({"scale_free": "yes"}, "scale_free must be True or False, got 'yes'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Bayesian(**settings)


# ------------------------------------------------------------------ thousands of clients, from passes over the data


@dataclass
class Streaming:
    """A geometry that has no Gram matrix of all clients and counts its passes."""

    X: np.ndarray
    passes: int = 0
    streaming: bool = True
    ids: tuple = ()
    sizes: None = None

    @property
    def K(self) -> int:
        return len(self.X)

    def residuals(self, a):
        self.passes += 1
        rows = np.atleast_2d(a) @ self.X
        r2 = (self.X**2).sum(1) - 2 * rows @ self.X.T + (rows**2).sum(1)[:, None]
        return np.maximum(r2[0] if a.ndim == 1 else r2, 0.0)

    def subset(self, clients):
        self.passes += 1
        few = self.X[np.asarray(clients)]
        return GramGeometry(few @ few.T)


@pytest.mark.parametrize(
    ("attack", "spread"), [("none", 1.0), ("noise", 3.0), ("sign flip", 4.0), ("copies", 1.0), ("copies", 50.0)]
)
@pytest.mark.parametrize("clients", [30, 700])
def test_streaming_agrees_with_the_gram_matrix(attack, spread, clients):
    M = 0 if attack == "none" else int(0.4 * clients)
    X = federation(M, attack, spread=spread, clients=clients)
    stream = Streaming(X)
    a, b = Bayesian().mix(stream), Bayesian().mix(geometry(X))
    assert stream.passes <= 8
    gap = (a.matrix[0] - b.matrix[0]) @ X
    assert gap @ gap < 0.001  # squared honest spreads; 1 is the honest variance
    np.testing.assert_allclose(a.honesty, b.honesty, atol=0.05)
    assert kappa(X, M, a.matrix[0]) < 0.01
    assert [len(group) for group in a.diagnostics["groups"]] == ([M] if attack == "copies" else [])


def test_streaming_is_deterministic_and_small_rounds_work():
    X = federation(200, "noise", clients=600, spread=3.0)
    np.testing.assert_array_equal(Bayesian().mix(Streaming(X)).matrix, Bayesian().mix(Streaming(X)).matrix)
    for clients in (1, 2, 3, 5):
        assert np.isclose(Bayesian().mix(Streaming(federation(0, "none", clients=clients))).matrix.sum(), 1.0)
    same = Bayesian().mix(Streaming(np.ones((40, 3))))
    assert same.status is Status.MAJORITY_IDENTICAL
