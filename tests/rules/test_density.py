import numpy as np
import pytest

from honestly.rules._lib.density import hdbscan


def clusters(seed, K=24):
    rng = np.random.default_rng(seed)
    c = seed % 4 + 1
    X = rng.normal(size=(K, 3)) + (6 * rng.normal(size=(c, 3)))[rng.integers(0, c, K)]
    return np.linalg.norm(X[:, None] - X[None], axis=2)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (0, "........................"),
        (2, "011111110101011101001111"),
        (3, "00.0.1.00.1010.010.0011."),
        (7, "011123032212001301333022"),
        (10, "010211010222110010010221"),
        (26, ".0111001101111.00.000011"),
        (27, ".0122112.1000.1002011212"),
    ],
)
def test_labels_agree_with_hdbscan(seed, expected):
    """Compare with the labels of hdbscan 0.8.44, `HDBSCAN(metric="precomputed")`, numbered by their first member."""
    assert "".join("." if c < 0 else str(c) for c in hdbscan(clusters(seed))) == expected


@pytest.mark.parametrize("seed", range(8))
def test_the_order_does_not_matter_even_if_distances_are_equal(seed):
    D = np.round(clusters(seed))
    order = np.random.default_rng(seed).permutation(len(D))
    straight, shuffled = hdbscan(D), hdbscan(D[np.ix_(order, order)])
    together = straight[:, None] == straight[None, :]
    np.testing.assert_array_equal(together[np.ix_(order, order)], shuffled[:, None] == shuffled[None, :])
    np.testing.assert_array_equal(straight[order] < 0, shuffled < 0)


def test_copies_are_a_cluster_each():
    x = np.repeat([0.0, 1.0], 6)
    assert hdbscan(np.abs(x[:, None] - x)).tolist() == [0] * 6 + [1] * 6


def test_too_few_points_have_no_cluster():
    assert (hdbscan(np.zeros((9, 9))) < 0).all()
    assert hdbscan(np.zeros((0, 0))).size == 0
