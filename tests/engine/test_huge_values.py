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
