"""Values of 16 bits are ranked as integers: in the same order, and found unusable in the same cases."""

from __future__ import annotations

import numpy as np
import pytest

import honestly as hn
from honestly.arrays import LARGEST, widen
from honestly.engine.passes.keys import are_finite, from_keys, to_keys
from honestly.engine.passes.plain import PlainPasses
from honestly.sources import open_source

EVERY = np.arange(1 << 16, dtype=np.uint16)


def wide(bits: np.ndarray, kind: str) -> np.ndarray:
    out = np.empty(bits.shape, np.float32)
    widen(bits.view(kind), out)
    return out


def keys_of(bits: np.ndarray) -> np.ndarray:
    keys = np.empty(bits.shape, np.int16)
    to_keys(bits.view(np.int16), keys)
    return keys


@pytest.mark.parametrize("kind", ["float16", "uint16"])
def test_keys_rise_with_the_values_and_lead_back_to_them(kind: str) -> None:
    values, keys = wide(EVERY, kind), keys_of(EVERY)
    finite = np.isfinite(values)
    order = np.argsort(keys[finite], kind="stable")
    assert (np.diff(values[finite][order]) >= 0).all()
    (back,) = from_keys([keys], np.dtype(kind))
    np.testing.assert_array_equal(back, values)
    assert len(np.unique(keys)) == 1 << 16


@pytest.mark.parametrize("kind", ["float16", "uint16"])
def test_values_that_cannot_be_used_are_found(kind: str) -> None:
    fine = np.abs(wide(EVERY, kind)) <= LARGEST["float32"]
    assert are_finite(keys_of(EVERY[fine]), np.dtype(kind))
    for bits in EVERY[~fine]:
        assert not are_finite(keys_of(np.array([0, bits], np.uint16)), np.dtype(kind))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("K", [3, 20, 43, 81])
def test_the_result_is_that_of_the_same_values_in_float32(
    kind: str, K: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    narrow = torch.from_numpy(np.random.default_rng(K).normal(size=(K, 5000))).to(getattr(torch, kind))
    narrow[:, ::7] = narrow[:, ::7].round()  # ties
    for rule in (hn.Median(), hn.TrimmedMean(trim=0.2), hn.Meamed(f=1)):
        asked = []
        monkeypatch.setattr(PlainPasses, "keys", _record(PlainPasses.keys, asked))
        values, fine = PlainPasses(open_source(narrow)).reduce(rule, None, range(K))
        assert fine()
        assert asked
        assert all(found is not None for found in asked)
        wanted, _ = PlainPasses(open_source(narrow.float())).reduce(rule, None, range(K))
        rounded = torch.from_numpy(np.asarray(wanted[0])).to(narrow.dtype).float().numpy()
        found = torch.from_numpy(values[0].view(np.int16)).view(narrow.dtype).float().numpy()
        np.testing.assert_array_equal(found, rounded)


def _record(method, found):
    def call(*args):
        found.append(method(*args))
        return found[-1]

    return call
