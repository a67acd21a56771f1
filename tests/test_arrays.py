"""Conversions between the widths of floats, value by value."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import honestly as hn
from honestly.arrays import widen

EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = EVERY[np.isfinite(EVERY)]


@pytest.mark.parametrize(
    "values",
    [EVERY, FINITE, FINITE[::2], FINITE.astype(">f2"), np.stack([FINITE, FINITE])[:, 3:999], FINITE[:0], FINITE[5]],
    ids=["every", "finite", "every other", "of the other byte order", "of a matrix", "none", "a single one"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_float16_is_widened_to_the_same_value(values: np.ndarray, dtype: type) -> None:
    values = np.asarray(values)
    out = np.empty(values.shape, dtype)
    widen(values, out)
    np.testing.assert_array_equal(out, values.astype(dtype))
    np.testing.assert_array_equal(np.signbit(out), np.signbit(values))


def test_into_rows_of_a_larger_array() -> None:
    wider = np.zeros((3, 50_000), np.float32)
    widen(np.stack([FINITE[:40_000]] * 2), wider[:2, 100:40_100])
    np.testing.assert_array_equal(wider[:2, 100:40_100], np.stack([FINITE[:40_000]] * 2).astype(np.float32))
    assert not wider[2].any()
    assert not wider[:, 40_100:].any()


def test_denormal_numbers_that_count_as_zero_do_not_spoil_small_values() -> None:
    """Some programs, or `torch.set_flush_denormal`, let the processor take denormal numbers for zero."""
    script = """
import numpy as np
import torch
import honestly as hn
from honestly.arrays import widen
if torch.set_flush_denormal(True):
    out = np.empty(3, np.float32)
    widen(np.array([1, 2, 512], np.uint16).view(np.float16), out)
    assert out.tolist() == [2.0**-24, 2.0**-23, 2.0**-15], out
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_what_jax_traces_has_no_values_and_the_message_says_what_to_do() -> None:
    """NumPy cannot see it, and JAX's own error did not name honestly.jax."""
    import jax

    for average in (lambda x: hn.aggregate(x).value, lambda x: hn.aggregate([{"w": row} for row in x]).value):
        with pytest.raises(ValueError, match=r"traced by jax.jit.*honestly.jax.robust_mean"):
            jax.jit(average)(np.ones((3, 2), np.float32))
