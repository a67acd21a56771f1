import numpy as np
import pytest

from honestly.rules.norm_clipping import NormClipping

from .clients import geometry, honest, value


def naive(X, origin, radius):
    radius = np.median([np.linalg.norm(x - origin) for x in X]) if radius is None else radius
    out = np.zeros_like(origin)
    for x in X:
        out += (x - origin) * min(1.0, radius / np.linalg.norm(x - origin))
    return origin + out / len(X)


@pytest.mark.parametrize("radius", [None, 0.1, 2.5, 1e6])
@pytest.mark.parametrize("reference", [None, np.linspace(-1, 1, 7)])
def test_matches_the_loop(radius, reference):
    X = honest()
    origin = np.zeros(7) if reference is None else reference
    np.testing.assert_allclose(
        value(NormClipping(radius=radius), X, reference=reference), naive(X, origin, radius), rtol=1e-9
    )


def test_the_reference_gets_the_clipped_weight():
    mix = NormClipping(radius=1e-3).mix(geometry(honest(), reference=np.zeros(7)))
    assert 1.0 - mix.matrix.sum() > 0.99
