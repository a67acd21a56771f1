"""The Bayesian rule for thousands of clients, from passes over the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import honestly as hn
from honestly.engine.streaming import STREAM_FROM
from honestly.result import Status
from honestly.rules.bayesian import Bayesian
from honestly.rules.rule import GramGeometry

from .bayesian_rounds import d, federation, kappa
from .clients import geometry


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
    assert stream.passes == 3
    assert ((a.honesty < 0.5) != (b.honesty < 0.5)).mean() < 0.01
    assert kappa(X, M, a.matrix[0]) < 0.05
    assert [len(group) for group in a.diagnostics["groups"]] == ([M] if attack == "copies" else [])


def test_streaming_accuses_nobody_of_a_small_error_that_points_to_large_lies():
    X = federation(0, "none", clients=600)
    lie = np.random.default_rng(3).normal(size=d) / np.sqrt(d)
    X[5] += 1.5 * lie
    X[500:] += 75.0 * lie
    assert set(np.flatnonzero(Bayesian().mix(Streaming(X)).honesty < 0.5)) == set(range(500, 600))


@pytest.mark.parametrize(("share", "spread"), [(0.1, 1e5), (0.3, 3.0), (0.48, 100.0)])
@pytest.mark.parametrize("drawn", [15, 256, 600], ids="{} positions are known".format)
def test_no_minority_captures_the_sample(share: float, spread: float, drawn: int) -> None:
    """Neither where liars know who would be drawn by position, nor by chance, when nearly half of all lie."""
    clients = 1500
    M = int(share * clients)
    X = federation(M, "collusion with jitter", spread=spread, clients=clients)
    known = np.random.default_rng(clients).choice(clients, size=drawn, replace=False)
    place = np.concatenate([known, np.setdiff1d(np.arange(clients), known)])[::-1]  # of each client: liars come last
    order = np.argsort(place)
    assert kappa(X, M, Bayesian().mix(Streaming(X[order])).matrix[0][place]) < 0.1


@pytest.mark.parametrize("lie", [30.0, 1e6])
@pytest.mark.parametrize("tensor", ["bias", "running_var", "frozen"])
def test_no_layer_is_moved_by_who_is_far_away_in_it_alone(tensor: str, lie: float) -> None:
    """In a tensor so small that nobody is accused by it, in a buffer, and where the others sent the same."""
    rng, clients = np.random.default_rng(1), STREAM_FROM
    honest = int(0.52 * clients)
    updates = {
        "weight": rng.normal(size=(clients, 60)),
        "bias": rng.normal(size=(clients, 3)),
        "running_var": 1.0 + rng.normal(size=(clients, 8)),
        "frozen": np.zeros((clients, 4)),
    }
    updates[tensor][honest:] += lie
    out = hn.aggregate([{name: rows[k] for name, rows in updates.items()} for k in range(clients)])
    for name, rows in updates.items():
        H = rows[:honest]
        error = float(np.square(out.value[name] - H.mean(axis=0)).sum())
        assert error <= 0.5 * float(np.square(H - H.mean(axis=0)).sum(axis=1).mean()) + 1e-20, name


def test_streaming_is_deterministic_and_small_rounds_work():
    X = federation(200, "noise", clients=600, spread=3.0)
    np.testing.assert_array_equal(Bayesian().mix(Streaming(X)).matrix, Bayesian().mix(Streaming(X)).matrix)
    for clients in (1, 2, 3, 5):
        assert np.isclose(Bayesian().mix(Streaming(federation(0, "none", clients=clients))).matrix.sum(), 1.0)
    same = Bayesian().mix(Streaming(np.ones((40, 3))))
    assert same.status is Status.MAJORITY_IDENTICAL


@pytest.mark.parametrize("layers", [[40], [20, 20]])
def test_nobody_is_accused_of_moving_while_a_majority_sent_the_same(layers: list[int]) -> None:
    """There is no spread to measure by: with fewer clients nobody is judged, either."""
    updates = np.ones((STREAM_FROM, 40))
    updates[::3] += np.random.default_rng(0).normal(size=(len(updates[::3]), 40))
    out = hn.aggregate(updates, layers=layers)
    assert out.status is Status.MAJORITY_IDENTICAL
    assert out.accused == ()
    assert np.isfinite(out.diagnostics["votes"]).all()
    assert np.isnan(out.diagnostics["layers"]).all()
    np.testing.assert_allclose(out.value, 1.0, rtol=1e-12)
