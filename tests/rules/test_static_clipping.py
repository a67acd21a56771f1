import numpy as np
import pytest

from honestly.rules.static_clipping import StaticClipping

from .clients import geometry, honest, mixtures


@pytest.mark.parametrize("radius", [0.1, 2.5, 1e6])
@pytest.mark.parametrize("reference", [None, np.linspace(-1, 1, 7)])
def test_matches_the_loop(radius, reference):
    X = honest()
    origin = np.zeros(7) if reference is None else reference
    expected = [origin + (x - origin) * min(1.0, radius / np.linalg.norm(x - origin)) for x in X]
    np.testing.assert_allclose(mixtures(StaticClipping(radius=radius), X, reference=reference), expected, rtol=1e-9)


def test_geometry_of_the_clipped():
    X, reference = honest(), np.linspace(-1, 1, 7)
    mixer = StaticClipping(radius=2.0)
    clipped = mixtures(mixer, X, reference=reference)
    known = geometry(X, reference=reference)
    after = known.mixtures(mixer.mix(known))
    np.testing.assert_allclose(
        after.gram_about_reference, geometry(clipped, reference=reference).gram_about_reference, atol=1e-9
    )
    a = np.full(12, 1 / 12)
    np.testing.assert_allclose(after.residuals(a), geometry(clipped).residuals(a), atol=1e-9)
