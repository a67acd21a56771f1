import numpy as np
import pytest

from honestly.rules.flame import FLAME

from .clients import geometry, honest, value


def naive(X, origin):
    U = X - origin
    n = len(U)
    norms = [np.linalg.norm(u) for u in U]
    D = [[1 - U[i] @ U[j] / norms[i] / norms[j] for j in range(n)] for i in range(n)]
    admitted = list(range(n))
    for level in sorted({D[i][j] for i in range(n) for j in range(n) if i != j}):
        # components of the graph of pairs within `level`
        left, components = set(range(n)), []
        while left:
            grown = {left.pop()}
            while True:
                more = {j for i in grown for j in left if D[i][j] <= level}
                if not more:
                    break
                grown |= more
                left -= more
            components.append(grown)
        if max(map(len, components)) > n // 2:
            admitted = sorted(max(components, key=len))
            break
    S = np.median(norms)
    return origin + sum(U[k] * min(1, S / norms[k]) for k in admitted) / len(admitted), admitted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("K", [2, 3, 10, 13])
@pytest.mark.parametrize("reference", [None, np.linspace(-1, 1, 7)])
def test_matches_the_loop(K, seed, reference):
    X = honest(K, seed=seed)
    X[K // 2 + 1 :] *= -3
    expected, admitted = naive(X, np.zeros(7) if reference is None else reference)
    mix = FLAME().mix(geometry(X, reference=reference))
    assert list(mix.diagnostics["selected"]) == admitted
    np.testing.assert_allclose(value(FLAME(), X, reference=reference), expected, rtol=1e-9)


def test_clients_in_the_same_direction_are_all_admitted():
    """Their cosines are 1 up to rounding, which must not choose among them."""
    rng = np.random.default_rng(0)
    for K in (3, 5, 10):
        X = rng.uniform(0.5, 2.0, size=(K, 1)) * rng.normal(size=40)
        assert len(FLAME().mix(geometry(X)).diagnostics["selected"]) == K
