import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules.fltrust import FLTrust

from .clients import geometry, honest, value


def naive(X, origin, root):
    g0 = root - origin
    total, out = 0.0, np.zeros_like(origin)
    for x in X:
        g = x - origin
        trust = max(0.0, g @ g0 / np.linalg.norm(g) / np.linalg.norm(g0))
        total += trust
        out += trust * np.linalg.norm(g0) / np.linalg.norm(g) * g
    return origin + out / total


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reference", [None, np.linspace(-1, 1, 7)])
def test_matches_the_loop(reference, seed):
    X = honest(seed=seed)
    origin = np.zeros(7) if reference is None else reference
    root = X.mean(axis=0) + 0.3
    X[5:] = origin - 4 * (X[5:] - origin)
    np.testing.assert_allclose(value(FLTrust(root=root), X, reference=reference, root=root), naive(X, origin, root))


def test_a_flipped_client_has_no_weight():
    X = honest()
    X[0] *= -1
    mix = FLTrust(root=X[1]).mix(geometry(X, root=X[1]))
    assert mix.matrix[0, 0] == 0.0
    assert mix.diagnostics["trust"][1] == pytest.approx(1.0)


def test_the_reference_is_kept_if_nobody_agrees():
    X = honest()
    reference = np.zeros(7)
    root = -X.mean(axis=0) * 10
    flipped = np.abs(X)
    out = value(FLTrust(root=root), flipped, reference=reference, root=-np.ones(7))
    np.testing.assert_array_equal(out, reference)


def test_a_client_that_changes_one_bit_does_not_drown_the_model_in_rounding():
    rng = np.random.default_rng(0)
    old = rng.normal(size=1000).astype(np.float32)
    step = 0.01 * rng.normal(size=1000)
    updates = (old + step + 0.005 * rng.normal(size=(8, 1000))).astype(np.float32)
    root = (old + step).astype(np.float32)
    i = int(np.argmax(step))
    updates[0] = old
    updates[0, i] = np.nextafter(old[i], np.float32(np.inf))
    found = aggregate(updates, FLTrust(root=root), reference=old).value
    expected = naive(updates[1:].astype(float), old.astype(float), root.astype(float))
    cosine = float((found - old) @ (expected - old) / np.linalg.norm(found - old) / np.linalg.norm(expected - old))
    assert cosine > 0.9999
    without = aggregate(updates[1:] - old, FLTrust(root=root - old)).value
    np.testing.assert_allclose(old + without, expected, atol=1e-5)


def test_needs_a_root():
    with pytest.raises(ValueError, match=r"FLTrust\(root=\.\.\.\)"):
        FLTrust().mix(geometry(honest()))
