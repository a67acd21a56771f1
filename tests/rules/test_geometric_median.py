import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from honestly import AggregationError, Status, aggregate
from honestly.rules.geometric_median import PASSES, GeometricMedian
from honestly.rules.sizes import used_sizes
from honestly.rules.smoothed_geometric_median import SmoothedGeometricMedian

from .clients import geometry, honest, value


def total(X, z):
    return float(np.linalg.norm(X - z, axis=1).sum())


def naive(X, steps=20_000):
    """Weiszfeld on the vectors, slightly smoothed, with many iterations."""
    z = X.mean(axis=0)
    for _ in range(steps):
        r = np.maximum(np.linalg.norm(X - z, axis=1), 1e-12)
        z = (X / r[:, None]).sum(axis=0) / (1 / r).sum()
    return z


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("K", "d"), [(3, 2), (5, 3), (20, 2), (20, 50)])
def test_matches_the_loop(K, d, seed):
    X = honest(K, d, seed)
    np.testing.assert_allclose(value(GeometricMedian(), X), naive(X), atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_the_gap_is_a_certificate(K, d, seed):
    X = honest(K, d, seed)
    mix = GeometricMedian(tolerance=1e-4).mix(geometry(X))
    z = mix.matrix[0] @ X
    best = total(X, naive(X, 1000))
    assert mix.diagnostics["sum_of_distances"] == pytest.approx(total(X, z))
    assert total(X, z) - best <= mix.diagnostics["gap"] + 1e-9 * best


def test_a_client_that_is_the_median_is_returned_exactly():
    X = np.vstack([honest(8, 2), np.zeros((1, 2))])
    X[:8] -= X[:8].mean(0)
    X[4:8] = -X[:4]  # symmetric about the last client
    mix = GeometricMedian().mix(geometry(X))
    np.testing.assert_array_equal(mix.matrix[0], np.eye(9)[8])
    assert mix.status is Status.CONVERGED
    assert mix.diagnostics["gap"] == 0.0


def test_starts_on_a_client_that_is_not_the_median():
    # The mean of the nearest majority is client 0, where plain Weiszfeld divides by 0.
    X = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.3, 4.0], [0.1, 5.0], [-0.4, 4.5]])
    mix = GeometricMedian().mix(geometry(X))
    assert mix.status is Status.CONVERGED
    np.testing.assert_allclose(mix.matrix[0] @ X, naive(X), atol=1e-5)


def test_a_majority_of_copies_wins():
    X = np.vstack([np.ones((6, 3)), honest(5, 3)])
    np.testing.assert_allclose(value(GeometricMedian(), X), 1.0, atol=1e-6)


def test_colluders_far_away_move_it_little():
    X = honest(20, 5)
    X[11:] = 1e12
    mix = GeometricMedian().mix(geometry(X))
    assert mix.status is Status.CONVERGED
    assert np.linalg.norm(mix.matrix[0] @ X - X[:11].mean(0)) < 20


def test_status_reports_when_steps_run_out():
    mix = GeometricMedian(steps=1, tolerance=1e-15).mix(geometry(honest(5, 3)))
    assert mix.status is Status.STEP_LIMIT
    assert not mix.status.ok
    assert mix.diagnostics["gap"] > 0


class Streaming:
    """A geometry that has only residuals."""

    streaming = True
    sizes = None

    def __init__(self, X):
        self.X, self.K = X, len(X)

    def residuals(self, a):
        np.testing.assert_allclose(a.sum(axis=-1), 1.0)
        return ((self.X - (a @ self.X)[..., None, :]) ** 2).sum(axis=-1)


def test_streams():
    X = honest(30, 4)
    streamed = GeometricMedian().mix(Streaming(X))
    np.testing.assert_allclose(streamed.matrix, GeometricMedian().mix(geometry(X)).matrix, atol=1e-4)
    assert streamed.steps <= PASSES


@pytest.mark.parametrize("rule", [GeometricMedian(), SmoothedGeometricMedian()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("far", [1e3, 1e12])
def test_streamed_liars_who_move_the_mean_to_others_do_not_hold_the_start(rule, far: float) -> None:
    X = honest(300, 4)
    X[:40] = far
    X[40:120] = 40 / 300 * 1.5 * far  # where the mean is
    middle = rule.mix(Streaming(X)).matrix[0] @ X
    assert np.linalg.norm(middle - X[120:].mean(axis=0)) < 10.0


def test_clients_as_near_as_one_another_start_together() -> None:
    """Mirrored clients: whichever of a pair comes first, the steps begin in the middle of them."""
    X = honest(4, 5)
    X = np.concatenate([X, -X])
    for order in (np.arange(8), np.array([4, 1, 6, 3, 0, 5, 2, 7])):
        np.testing.assert_allclose(
            SmoothedGeometricMedian().mix(geometry(X[order])).matrix[0] @ X[order], 0, atol=1e-12
        )


@pytest.mark.parametrize("seed", range(6))
def test_trusted_sizes_count_a_client_as_often_as_they_say(seed: int) -> None:
    make = np.random.default_rng(seed)
    X = make.normal(size=(7, 5))
    sizes = make.integers(0, 4, size=7)
    sizes[seed % 7] = 9 if seed % 2 else 1  # now and then one client outweighs all others
    sizes[(seed + 1) % 7] = 2
    once = aggregate(X, GeometricMedian(sizes="trusted"), sizes=sizes.tolist())
    often = aggregate(np.repeat(X, sizes, axis=0), GeometricMedian())
    np.testing.assert_allclose(once.value, often.value, atol=1e-6)
    assert once.weights is not None
    assert (once.weights[sizes == 0] == 0).all()


def test_trusted_sizes_scale_freely_and_equal_ones_change_nothing() -> None:
    X = np.random.default_rng(1).normal(size=(8, 4))
    sizes = np.arange(1.0, 9.0)
    rule = GeometricMedian(sizes="trusted")
    expected = aggregate(X, rule, sizes=sizes).value
    np.testing.assert_allclose(aggregate(X, rule, sizes=sizes * 1e300).value, expected, rtol=1e-12)
    same = aggregate(X, rule, sizes=[3] * 8).value
    np.testing.assert_allclose(same, aggregate(X, "geometric_median").value, atol=1e-7)


def test_trusted_sizes_must_be_there() -> None:
    X = np.random.default_rng(1).normal(size=(8, 4))
    with pytest.raises(ValueError, match="needs the clients' sizes"):
        aggregate(X, GeometricMedian(sizes="trusted"))
    with pytest.raises(AggregationError, match="none of the 8 clients reported a size above 0"):
        aggregate(X, GeometricMedian(sizes="trusted"), sizes=[0.0] * 7 + [np.nan])


def test_other_sizes_are_capped_as_those_of_any_rule() -> None:
    X = np.random.default_rng(2).normal(size=(8, 4))
    sizes = [6, 900, 1000, 800, 1200, 1000, 900, 1e9]
    plain, used = aggregate(X, "geometric_median"), used_sizes(np.array(sizes))
    assert plain.weights is not None
    expected = plain.weights * used / (plain.weights * used).sum()
    np.testing.assert_allclose(aggregate(X, "geometric_median", sizes=sizes).weights, expected, rtol=1e-12)


@pytest.mark.parametrize("sizes", [[2, 0, 0], [1, 1, 0]])
def test_trusted_sizes_of_zero_away_from_the_copies_of_a_client(sizes: list[int]) -> None:
    X = honest(3)
    X[1] = X[0]
    np.testing.assert_allclose(aggregate(X, GeometricMedian(sizes="trusted"), sizes=sizes).value, X[0])
