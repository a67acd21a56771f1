import numpy as np
import pytest

from honestly.rules.multi_krum import MultiKrum

from .clients import geometry, honest, value
from .test_krum import naive_scores


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("K", "f", "keep"), [(9, 3, None), (20, 4, 16), (20, 8, 5), (20, 9, 11), (3, 0, 1)])
def test_matches_the_loop(K, f, keep, seed):
    X = honest(K, seed=seed)
    middle = [sorted(np.linalg.norm(x - y) for y in X)[1:][(K - 1) // 2] for x in X]  # breaks ties of two neighbours
    best = np.lexsort((middle, naive_scores(X, f)))[: keep or K - f]
    np.testing.assert_allclose(value(MultiKrum(f=f, keep=keep), X), sum(X[k] for k in best) / len(best))


def test_copies_of_one_client_do_not_break_the_scores():
    X = np.vstack([np.zeros((4, 3)), honest(5, d=3)])
    assert np.isfinite(value(MultiKrum(f=2), X)).all()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (MultiKrum(f=10), r"needs at least max\(2f\+1, f\+3\) = 21 clients, got 20"),
        (MultiKrum(f=4, keep=17), r"cannot keep more than K - f = 16 of 20 clients"),
    ],
)
def test_names_the_bound(rule, message):
    with pytest.raises(ValueError, match=message):
        rule.check(20)


def test_exclusions_shorten_what_is_kept():
    mix = MultiKrum(f=4, keep=16).mix(geometry(honest(19)))
    assert mix.diagnostics["keep"] == 15
    assert np.count_nonzero(mix.matrix) == 15
