"""Values near the limits of their dtype, from one client or from half of them, end in an exclusion or an answer."""

from __future__ import annotations

import numpy as np
import pytest

import honestly as hn


@pytest.mark.parametrize("value", [1e69, 1e148, 9.9e149, 1e308])
@pytest.mark.parametrize("size", [1e-6, 1e-3])
def test_one_huge_client_does_not_end_the_round(value: float, size: float) -> None:
    """Its squared distance is divided by the others' spread, which must not overflow either."""
    rng = np.random.default_rng(0)
    updates = [{"a": size * rng.normal(size=300), "b": size * rng.normal(size=200)} for _ in range(20)]
    updates[4] = {name: np.full_like(array, value) for name, array in updates[4].items()}
    out = hn.aggregate(updates)
    assert (*out.accused, *out.excluded) == (4,)
    assert np.abs(out.value["a"]).max() < 5 * size


@pytest.mark.parametrize("rule", ["bayesian", "geometric_median", "krum:f=1"])
@pytest.mark.parametrize(("dtype", "value"), [(np.float64, 1e308), (np.float32, 1e30)])
def test_half_of_the_clients_alike_and_huge_are_named(rule: str, dtype: type, value: float) -> None:
    """One of them is the centre: the others' distances to it overflow, and its own is 0."""
    updates = np.random.default_rng(0).normal(size=(6, 20)).astype(dtype)
    updates[:3] = value
    with pytest.raises(hn.AggregationError, match="only 3 of 6 clients can be used") as error:
        hn.aggregate(updates, rule)
    assert list(error.value.reasons) == [0, 1, 2]


@pytest.mark.parametrize(("dtype", "value"), [(np.float64, 1e71), (np.float32, 1e18)])
def test_faults_that_show_when_two_clients_are_compared(dtype: type, value: float) -> None:
    """The first pass measures one of them from the other; whether they contradict one another is measured from 0."""
    updates = np.array([[value, value], [value, 0.99 * value], [np.nan, 0]], dtype)
    with pytest.raises(hn.AggregationError, match="only 0 of 3 clients can be used"):
        hn.aggregate(updates)


def test_clients_that_are_where_the_centre_is_but_for_rounding_cause_no_warning() -> None:
    """Far from the reference, rounding leaves nothing of an error's length, but something of its products."""
    rng = np.random.default_rng(0)
    far = (rng.integers(-1, 2, size=(30, 5, 2)) + 1e4 * rng.normal(size=(30, 1, 2))).astype(np.float32)
    wide = 1e4 * rng.normal(size=(30, 5, 3)).astype(np.float32)
    reference = {"far": np.zeros(2, np.float32), "wide": np.zeros(3, np.float32)}
    for one, other in zip(far, wide, strict=True):
        clients = [{"far": a, "wide": b} for a, b in zip(one, other, strict=True)]
        assert np.isfinite(hn.aggregate(clients, reference=reference).value["far"]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("rule", ["bayesian", "median", "geometric_median"])
def test_a_program_that_asks_numpy_to_raise_gets_its_answer(dtype: type, rule: str) -> None:
    """Denormal results, and clients that agree but for nothing, underflow."""
    updates = (1e-4 * np.random.default_rng(0).normal(size=(6, 40))).astype(dtype)
    alike = np.repeat(updates[:1], 6, axis=0)
    expected = [hn.aggregate(x, rule, reference=updates[1]).value for x in (updates, alike)]
    with np.errstate(all="raise"):
        values = [hn.aggregate(x, rule, reference=updates[1]).value for x in (updates, alike)]
    np.testing.assert_array_equal(values, expected)
