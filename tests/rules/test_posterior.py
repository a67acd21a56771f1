"""What plain liars say about the others: the room that clients much nearer than they are given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from honestly.rules._posterior import APART, ODDS, PLAINLY, ROOM, room
from hypothesis import given
from hypothesis import strategies as st

from honestly.rules import _posterior
from honestly.rules.bayesian import Bayesian

from .clients import geometry

# median r^2 / s^2 of the 16 honest clients in rounds 71 to 80 of the paper's MNIST runs, configuration 1, alpha 1
LATE = (0.31, 0.36, 0.40, 0.47, 0.51, 0.56, 0.63, 0.70, 0.76, 0.88, 1.0, 1.15, 1.37, 1.80, 2.74, 4.90)


def late_round(liars: int, far: float, d: int = 2000) -> np.ndarray:
    """Updates that differ in length alone, each in a direction of its own; the liars' lengths are `far` times s."""
    rng = np.random.default_rng(0)
    lengths = np.concatenate([np.sqrt(LATE), np.full(liars, far)])
    X = rng.normal(size=(len(lengths), d)) / math.sqrt(d)
    return X * lengths[:, None]


def without_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_posterior, "room", lambda *_: None)


@pytest.mark.parametrize("far", [10.0, 1e2, 1e6, 1e12, 1e30])
def test_long_updates_are_not_accused_beside_plain_liars(far, monkeypatch):
    X = late_round(4, far)
    honesty = Bayesian().mix(geometry(X)).honesty
    assert honesty[:16].min() > 0.5
    assert honesty[16:].max() < 1e-6
    without_room(monkeypatch)
    assert (Bayesian().mix(geometry(X)).honesty[:16] < 0.5).sum() == 2


@pytest.mark.parametrize("far", [1e2, 1e30])
def test_room_is_bounded_however_far_the_liars_are(far):
    X = late_round(4, far)
    X[15] *= 3.0
    honesty = Bayesian().mix(geometry(X)).honesty
    assert honesty[15] < 1e-2
    assert honesty[:14].min() > 0.5


def kappa(X: np.ndarray, H: int) -> float:
    e = Bayesian().mix(geometry(X)).matrix[0].copy()
    e[:H] -= 1.0 / H
    honest = X[:H] - X[:H].mean(axis=0)
    return float(((e @ (X - X[:H].mean(axis=0))) ** 2).sum() / (honest**2).sum(axis=1).mean())


@pytest.mark.parametrize("M", [2, 4, 8])
def test_decoys_gain_nothing(M, monkeypatch):
    """Some attackers go far away, so that the others seem near: worse for them than to stay, or than before there was
    room, whatever the number of decoys."""
    rng = np.random.default_rng(M)
    d, H = 500, 20 - M
    own = rng.normal(size=(20, d)) / math.sqrt(d)
    direction, away = rng.normal(size=(2, d)) / math.sqrt(d)

    def worst() -> float:
        found = []
        for decoys in range(M):
            for t in (0.8, 1.1, 1.4, 1.7, 2.0, 2.4, 2.9, 3.5):
                for jitter in (0.2, 0.6, 1.0):
                    X = own.copy()
                    X[H:] = jitter * own[H:] + t * direction
                    X[20 - decoys :] = 1e3 * (own[20 - decoys :] + away)
                    found.append(kappa(X, H))
        return max(found)

    with_room = worst()
    without_room(monkeypatch)
    assert with_room <= 1.02 * worst()


@given(st.integers(0, 10**6), st.integers(3, 40), st.floats(-60, 60))
def test_room_against_its_formula(seed, n, log_unit):
    rng = np.random.default_rng(seed)
    h = n // 2 + 1
    r2 = np.exp(rng.normal(scale=3.0, size=n) + log_unit)
    s2 = float(np.sort(r2)[h - 1])
    pi = rng.choice([0.0, 0.01, 0.03, 0.2, 0.7, 1.0], size=n, p=[0.1, 0.1, 0.1, 0.1, 0.3, 0.3])
    counted = [max(0.0, 1.0 - p / PLAINLY) for p in pi]
    m = sum(counted)
    found = room(r2, s2, pi, h)
    if m == 0.0 or m >= n - h:
        assert found is None
        return
    u2 = m / sum(c / max(r, s2) for c, r in zip(counted, r2, strict=True))
    expected = [
        ODDS * min(1.0, m) * (1.0 - m / (n - h)) * min(max(math.log(u2 / (APART * max(r, s2))), 0.0), math.log(ROOM))
        for r in r2
    ]
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("r2", "s2"),
    [
        ([0.0, 0.0, 0.0, 0.0, 1e300], 0.0),
        ([1e-300, 1e-300, 1e-300, 1.0, 1e300], 1e-300),
        ([1e300] * 5, 1e300),
        ([0.0] * 5, 0.0),
    ],
)
def test_room_of_extreme_distances_is_finite(r2, s2):
    found = room(np.array(r2), s2, np.array([1.0, 1.0, 1.0, 1.0, 0.0]), 3)
    assert found is not None
    assert np.isfinite(found).all()
    assert ((found >= 0) & (found <= ODDS * math.log(ROOM))).all()
