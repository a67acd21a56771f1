import numpy as np
import pytest

from honestly.rules import RFLBAT
from honestly.rules._lib.kmeans import clusters_by_gap, kmeans

from .clients import geometry, honest


def naive(X, origin, eps1=10.0, eps2=4.0):
    """From the paper, with an SVD, loops, and the package's k-means."""
    C = X - X.mean(axis=0)
    P = C @ np.linalg.svd(C, full_matrices=False)[2][:2].T
    P = P * np.sign([P[np.abs(P[:, i]).argmax(), i] for i in range(2)])

    def pass_filter(names, eps):
        sums = [sum(np.linalg.norm(P[i] - P[j]) for j in names) for i in names]
        return [n for n, s in zip(names, sums, strict=True) if s < eps * np.median(sums)]

    left = pass_filter(list(range(len(X))), eps1)
    label = kmeans(P[left], clusters_by_gap(P[left], 9))
    best = (np.inf, None)
    for c in set(label.tolist()):
        group = [n for n, k in zip(left, label, strict=True) if k == c]
        if len(group) < 2:
            continue
        U = [(X[n] - origin) / np.linalg.norm(X[n] - origin) for n in group]
        best = min(best, (np.median([np.mean([u @ v for v in U]) for u in U]), group))
    return pass_filter(best[1], eps2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bad", [0, 3, 6])
def test_matches_the_loop(seed, bad):
    X = honest(20, 30, seed)
    reference = X.mean(axis=0) - 1.0
    X[20 - bad :] = reference - 3.0 + 0.2 * (X[20 - bad :] - reference)
    mix = RFLBAT().mix(geometry(X, reference=reference))
    np.testing.assert_array_equal(mix.diagnostics["selected"], naive(X, reference))
    assert mix.matrix[0, 20 - bad :].sum() == 0


def restarted_kmeans(P, k, rng, restarts=200):
    """Lloyd's steps in loops from random points, as libraries do it; the lowest cost and its groups."""
    best = (np.inf, [])
    for _ in range(restarts):
        centres = P[rng.choice(len(P), k, replace=False)]
        for _ in range(30):
            nearest = [int(np.argmin([np.linalg.norm(p - c) for c in centres])) for p in P]
            groups = [[i for i, c in enumerate(nearest) if c == j] for j in range(k)]
            moved = np.array([P[g].mean(axis=0) if g else c for g, c in zip(groups, centres, strict=True)])
            if (moved == centres).all():
                break
            centres = moved
        cost = sum(np.linalg.norm(P[i] - centres[c]) ** 2 for i, c in enumerate(nearest))
        best = min(best, (cost, [g for g in groups if g]))
    return best


@pytest.mark.parametrize(("seed", "k"), [(0, 2), (1, 2), (2, 3), (3, 3), (4, 4)])
def test_k_means_ends_near_the_best_of_many_random_starts(seed, k):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(16, 2))
    label = kmeans(points, k)
    cost = sum(((points[label == c] - points[label == c].mean(axis=0)) ** 2).sum() for c in set(label.tolist()))
    assert cost <= restarted_kmeans(points, k, rng)[0] * 1.05


@pytest.mark.parametrize("seed", range(3))
def test_matches_the_public_code_for_clear_clusters(seed):
    """3DFed's RFLBAT in loops, with its k-means of random starts; its gap statistic is told the three clusters."""
    rng = np.random.default_rng(seed)
    X = rng.normal(0.3, 0.3, (18, 40))
    X[8:13] += 3.0 * rng.normal(size=40)
    X[13:] += 3.0 * rng.normal(size=40)
    C = X - X.mean(axis=0)
    P = C @ np.linalg.svd(C, full_matrices=False)[2][:2].T
    assert clusters_by_gap(P, 9) == 3

    def near(names, eps):
        sums = [sum(np.linalg.norm(P[i] - P[j]) for j in names if j != i) for i in names]
        return [n for n, s in zip(names, sums, strict=True) if s < eps * np.median(sums)]

    left = near(list(range(18)), 10)
    scores = []
    for group in restarted_kmeans(P[left], 3, rng, 20)[1]:
        U = [X[left[i]] / np.linalg.norm(X[left[i]]) for i in group]
        scores.append((np.median([np.mean([u @ v for v in U]) for u in U]) if len(U) > 1 else 1, group))
    kept = near([left[i] for i in min(scores)[1]], 4)
    np.testing.assert_array_equal(np.sort(RFLBAT().mix(geometry(X)).diagnostics["selected"]), sorted(kept))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_gap_statistic_counts_clusters(k):
    rng = np.random.default_rng(k)
    centres = np.array([[0, 0], [9, 9], [0, 9]])[:k]
    points = np.concatenate([c + rng.uniform(-1, 1, (12, 2)) for c in centres])
    assert clusters_by_gap(points, 8) == k
    assert len({tuple(np.flatnonzero(kmeans(points, k) == c)) for c in range(k)}) == k


def test_k_means_does_not_depend_on_the_order():
    points = np.random.default_rng(0).normal(size=(30, 2))
    order = np.random.default_rng(1).permutation(30)
    np.testing.assert_array_equal(kmeans(points[order], 4), kmeans(points, 4)[order])


def test_k_means_is_a_fixed_point():
    points = np.random.default_rng(3).normal(size=(40, 3))
    label = kmeans(points, 5)
    centres = np.stack([points[label == c].mean(axis=0) for c in range(5)])
    np.testing.assert_array_equal(((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1), label)


@pytest.mark.parametrize("seed", range(6))
def test_rounding_among_copies_does_not_decide(seed):
    """Two camps of copies lie on a line: the second component is rounding, and so are distances within a camp."""
    rng = np.random.default_rng(seed)
    X = np.repeat([rng.normal(1.0, 1.0, 50), rng.normal(-1.0, 1.0, 50)], [6, 4], axis=0)
    for order in (np.arange(10), rng.permutation(10)):
        weights = RFLBAT().mix(geometry(X[order], reference=np.zeros(50))).matrix[0]
        np.testing.assert_array_equal(np.flatnonzero(weights), np.flatnonzero(order >= 6))


def test_most_is_a_whole_number():
    with pytest.raises(ValueError, match=r"RFLBAT: most must be an integer >= 1, got 2\.5"):
        RFLBAT(most=2.5)
