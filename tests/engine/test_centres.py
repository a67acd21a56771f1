"""Zero as the centre, where NumPy then multiplies rows in place: only if it is near, and verified after the pass."""

from __future__ import annotations

import numpy as np
import pytest
from compiler import needs_compiler

import honestly as hn
from honestly.arrays import LARGEST
from honestly.engine.centres import first_centre, starting_centre
from honestly.engine.geometry import measure_grams
from honestly.engine.passes import blas, compiled, passes_over, plain
from honestly.engine.screening import Screen
from honestly.rules.rule import squared_distances
from honestly.sources.open import open_source

K, D = 7, 9000


@pytest.fixture(autouse=True)
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's way, whatever the size."""
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 1 << 60)
    monkeypatch.setattr(plain, "WORTH_THREADS", 0)


def updates(dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).normal(size=(K, D)).astype(dtype)


def screen_of(X: np.ndarray, **options: object) -> Screen:
    source = open_source(X, **options)
    return Screen(source, passes_over(source))


def assert_right(screen: Screen, X: np.ndarray) -> None:
    """Distances are right to float32, whatever the centre."""
    exact = np.square(X[:, None].astype(np.float64) - X).sum(axis=-1)
    np.testing.assert_allclose(squared_distances(measure_grams(screen).gram), exact, rtol=2e-4, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_updates_around_zero_are_multiplied_in_place(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = updates(dtype)
    screen = screen_of(X)
    assert starting_centre(screen) is None
    monkeypatch.setattr(plain.PlainPasses, "fill", lambda *_: pytest.fail("a block was copied"))
    assert_right(screen, X)


def test_halves_around_zero_are_only_widened() -> None:
    X = updates("float16")
    screen = screen_of(X)
    assert starting_centre(screen) is None
    assert_right(screen, X)
    assert starting_centre(screen_of(X + np.float16(30))) is not None


@pytest.mark.parametrize("offset", [1.2, 30.0, 3000.0])
def test_updates_around_something_else_are_centred_on_a_client(offset: float) -> None:
    X = updates() + np.float32(offset)
    screen = screen_of(X)
    assert starting_centre(screen) == first_centre(screen, set())
    assert_right(screen, X)


def test_zero_is_not_trusted_where_nobody_looked() -> None:
    """A sample sees 2,048 columns; in the others all clients are far from zero, and near one another."""
    X = updates()
    sampled = screen_of(np.arange(D, dtype=np.float32)[None].repeat(K, axis=0)).passes.sample([0])[0].astype(int)
    unseen = np.setdiff1d(np.arange(D), sampled)
    X[:, unseen] = 1e4 + 1e-3 * X[:, unseen]
    screen = screen_of(X)
    assert starting_centre(screen) is None
    assert_right(screen, X)
    X[:, unseen] = 0.9 * LARGEST["float32"]  # every norm is too large, but no value and no distance
    assert_right(screen_of(X), X)


def test_a_few_liars_do_not_move_the_centre_from_zero() -> None:
    X = updates()
    X[:3] += 1e6
    assert starting_centre(screen_of(X)) is None
    X[3] = np.nan
    result = hn.aggregate(X, hn.GeometricMedian())
    assert list(result.excluded) == [3]


def test_zero_is_left_to_a_reference_to_copies_to_layers_and_to_two_clients() -> None:
    X = updates()
    assert starting_centre(screen_of(X, reference=X[0])) == K
    for other in (np.asfortranarray(X), X[:2], X[:2].astype(np.float16)):
        assert starting_centre(screen_of(other)) is not None
    layers = {"a": 4000, "b": 5000}
    assert starting_centre(screen_of(X, layers=layers)) is not None
    X[3, 0] = np.nan
    screen = screen_of(X)
    assert screen.refuse_faulty([3])
    assert starting_centre(screen) is not None  # the other rows are not one block


@needs_compiler
def test_the_compiled_program_centres_on_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)
    screen = screen_of(updates())
    assert starting_centre(screen) == first_centre(screen, set())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("rows", [3, 5, 20, 45])
def test_rows_in_place_as_in_a_scratch(rows: int, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both classes of kernels, and every length of the last run."""
    monkeypatch.setattr(blas, "wide_kernels", lambda: wide)
    way = blas.way_for(rows)
    assert way.in_place is not None
    whole = np.random.default_rng(rows).normal(size=(rows, 3 * way.multiple + 99)).astype(np.float32)
    for width in (1, way.multiple - 1, way.multiple, way.multiple + 1, 3 * way.multiple):
        X = whole[:, 7 : 7 + width]
        exact = X.astype(np.float64) @ X.T.astype(np.float64)
        np.testing.assert_allclose(blas.mirror(way.in_place(X)), exact, rtol=0, atol=1e-6 * exact.max())


@pytest.mark.parametrize("worth", [0, 1 << 60], ids=["compiled", "numpy"])
@pytest.mark.parametrize("follows", [False, True])
def test_a_centre_that_is_far_away_in_one_layer_hides_no_liars_there(
    worth: int, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 0 is the most central one in all, and 1e5 spreads away in a small layer or in a buffer."""
    monkeypatch.setattr(compiled, "WORTH_COMPILING", worth)
    rng = np.random.default_rng(1)
    small = "norm.running_mean" if follows else "small"
    whole, part = rng.normal(size=(20, 100_000)), 1e-3 * rng.normal(size=(20, 1000))
    honest = part[9:]
    whole[0], part[0] = whole[9:].mean(axis=0), 100 * rng.normal(size=1000)
    part[1:9] += 20e-3  # twenty spreads in the same direction
    clients = [
        {"a": a.astype(np.float32), small: b.astype(np.float32), "c": c.astype(np.float32)}
        for a, b, c in zip(whole[:, :50_000], part, whole[:, 50_000:], strict=True)
    ]
    error = hn.aggregate(clients).value[small] - honest.mean(axis=0)
    variance = np.square(honest - honest.mean(axis=0)).sum(axis=1).mean()
    assert error @ error < 9 / (20 - 9 - 9) * variance


def test_layers_in_which_the_centre_is_near_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    clients = [{"a": rng.normal(size=5000), "b": 1e-6 * rng.normal(size=50), "c": np.ones(7)} for _ in range(9)]
    passes: list[object] = []
    once = plain.PlainPasses.gram
    monkeypatch.setattr(plain.PlainPasses, "gram", lambda self, *args: passes.append(args) or once(self, *args))
    hn.aggregate(clients)
    assert len(passes) == 1
