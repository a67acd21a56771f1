import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules.clipped_clustering import ClippedClustering

from .clients import geometry, honest, value


def naive_clusters(D):
    clusters = [[k] for k in range(len(D))]
    while len(clusters) > 2:
        pairs = [(i, j) for i in range(len(clusters)) for j in range(i)]
        i, j = min(pairs, key=lambda p: np.mean([D[a][b] for a in clusters[p[0]] for b in clusters[p[1]]]))
        clusters[j] += clusters.pop(i)
    return clusters


def naive(X, origin, radius):
    U = X - origin
    norms = np.linalg.norm(U, axis=1)
    D = 1 - (U / norms[:, None]) @ (U / norms[:, None]).T
    clusters = naive_clusters(D)
    members = max(clusters, key=lambda c: (len(c), -np.mean([max(D[a][b], 0) * (a != b) for a in c for b in c])))
    radius = np.median(norms) if radius is None else radius
    return origin + sum(U[k] * min(1, radius / norms[k]) for k in members) / len(members), sorted(members)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "bad"), [(3, 1), (10, 4), (13, 0), (14, 6)])
@pytest.mark.parametrize("radius", [None, 1.0])
def test_matches_the_loop(K, bad, seed, radius):
    X = honest(K, seed=seed)
    X[K - bad :] *= -3
    for reference in (None, np.linspace(-1, 1, 7)):
        origin = np.zeros(7) if reference is None else reference
        expected, members = naive(X, origin, radius)
        mix = ClippedClustering(radius=radius).mix(geometry(X, reference=reference))
        assert list(mix.diagnostics["selected"]) == members
        np.testing.assert_allclose(value(ClippedClustering(radius=radius), X, reference=reference), expected, rtol=1e-9)


def test_two_clients_that_disagree_are_both_kept():
    X = np.array([[1.0, 0.0], [-1.0, 0.0]])
    np.testing.assert_allclose(value(ClippedClustering(), X), 0.0)


def test_of_two_equal_halves_the_tighter_one_is_kept():
    X = np.array([[1.0, 0.0], [1.0, 0.01], [-1.0, 0.0], [-1.0, 0.5]])
    assert list(ClippedClustering().mix(geometry(X)).diagnostics["selected"]) == [0, 1]


def test_clients_in_the_same_direction_are_one_cluster():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 2.0, size=(5, 1)) * rng.normal(size=40)
    assert len(ClippedClustering().mix(geometry(X)).diagnostics["selected"]) == 5


@pytest.mark.parametrize("seed", range(6))
def test_of_two_mirror_images_both_are_kept(seed):
    """They are as tight as each other, up to rounding."""
    X = honest(4, 40, seed).astype(np.float32)
    both = np.concatenate([X, -X])[np.random.default_rng(seed).permutation(8)]
    assert len(aggregate(both, ClippedClustering()).diagnostics["selected"]) == 8


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 1, 0), (2, 0, 1)], ids=str)
def test_clients_that_did_not_move_join_the_larger_side_in_any_order(order):
    """They are as far from everybody: 5 honest, 4 who oppose them and 3 idle ones, whoever comes first."""
    rng = np.random.default_rng(0)
    step = rng.normal(size=40)
    sides = (step + 0.5 * rng.normal(size=(5, 40)), -2 * step + 0.1 * rng.normal(size=(4, 40)), np.zeros((3, 40)))
    moved = value(ClippedClustering(), np.concatenate([sides[i] for i in order]), reference=np.zeros(40))
    np.testing.assert_allclose(moved, np.concatenate([sides[0], sides[2]]).mean(axis=0), atol=0.5)
    assert moved @ step > 0
