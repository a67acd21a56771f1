"""Each attack on updates against a formula written as naively as possible."""

import math

import numpy as np
import pytest
from scipy.stats import norm as gauss

from honestly.sim.attacks import View, make
from honestly.sim.attacks.alie import z_max


def view(M=3, honest=9, d=40, seed=0, reference=None):
    X = np.random.default_rng(seed).normal(0.3, 1.0, (honest + M, d))
    return View(
        own=X[honest:], others=X[:honest], rng=np.random.default_rng(5), clients=honest + M, reference=reference
    )


def test_none_and_sign_flip_and_scaling():
    seen = view()
    np.testing.assert_array_equal(make("none").forge(seen), seen.own)
    np.testing.assert_array_equal(make("sign_flip").forge(seen), -4 * seen.own)
    np.testing.assert_array_equal(make("scaling", gamma=7.0).forge(seen), 7 * seen.own)


def test_random_has_the_variance_of_the_paper_in_each_coordinate():
    own = np.tile(np.array([[0.5, -1.0, 3.0]]), (20_000, 1))
    forged = make("random").forge(View(own=own, rng=np.random.default_rng(0)))
    np.testing.assert_allclose(forged.var(axis=0), 4 * own[0] ** 2, rtol=0.05)
    np.testing.assert_allclose(forged.mean(axis=0), 0, atol=0.1)
    assert abs(np.corrcoef(forged[:, 0], forged[:, 1])[0, 1]) < 0.05


def test_random_colluding_is_the_average_of_random_weights():
    """Weights N(0, (4|w|)^2), averaged over M attackers, so a standard deviation of 4|w| / sqrt(M)."""
    reference = np.full(30_000, 10.0)
    seen = View(own=np.ones((4, 30_000)), reference=reference, rng=np.random.default_rng(0))
    weights = make("random_colluding").forge(seen)[0] + reference
    assert weights.std() == pytest.approx(4 * 11 / 2, rel=0.02)
    assert weights.mean() == pytest.approx(0, abs=0.5)


def test_gaussian_has_the_length_of_its_setting():
    seen = view(d=20_000)
    forged = make("gaussian", scale=3.0).forge(seen)
    np.testing.assert_allclose(np.linalg.norm(forged, axis=1), 3 * np.linalg.norm(seen.own, axis=1), rtol=0.03)


@pytest.mark.parametrize(("K", "M"), [(20, 4), (20, 8), (20, 9), (50, 24), (7, 3)])
def test_z_max_is_the_quantile_of_the_original(K, M):
    s = math.floor(K / 2 + 1) - M
    assert z_max(K, M) == pytest.approx(max(gauss.ppf((K - M - s) / (K - M)), 0))


def test_z_max_stays_finite_at_the_edges():
    assert z_max(20, 1) == 0.0  # the quantile would be negative
    assert 0 < z_max(4, 3) < 10
    assert z_max(1, 1) < 10


def test_alie_and_ipm():
    seen = view()
    mu, sigma = seen.others.mean(0), seen.others.std(0)
    np.testing.assert_allclose(make("alie", z=1.5).forge(seen)[0], mu - 1.5 * sigma)
    np.testing.assert_allclose(make("alie").forge(seen)[0], mu - z_max(12, 3) * sigma)
    np.testing.assert_allclose(make("ipm", epsilon=0.7).forge(seen)[1], -0.7 * mu)


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
@pytest.mark.parametrize("name", ["min_max", "min_sum"])
def test_min_max_and_min_sum_by_bisection(name, direction):
    seen = view(seed=3)
    H = seen.others
    mu = H.mean(0)
    p = {"std": -H.std(0), "unit": -mu / np.linalg.norm(mu), "sign": -np.sign(mu)}[direction]
    D = ((H[:, None] - H[None]) ** 2).sum(-1)

    def allowed(gamma):
        r = ((mu + gamma * p - H) ** 2).sum(1)
        return r.max() <= D.max() if name == "min_max" else r.sum() <= D.sum(1).max()

    low, high = 0.0, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    np.testing.assert_allclose(make(name, direction=direction).forge(seen)[0], mu + low * p, rtol=1e-6)


def krum(X, f):
    D = ((X[:, None] - X[None]) ** 2).sum(-1)
    score = np.sort(D, axis=1)[:, 1 : len(X) - f - 1].sum(1)
    return int(score.argmin())


@pytest.mark.parametrize("seed", range(4))
def test_fang_krum_is_chosen_by_krum_and_goes_against_the_mean(seed):
    seen = view(M=4, honest=12, seed=seed)
    forged = make("fang_krum").forge(seen)
    assert krum(np.concatenate([seen.others, forged]), f=4) >= 12
    np.testing.assert_array_equal(np.sign(forged[0]), -np.sign(seen.others.mean(0)))
    # twice as far, Krum would have refused it, or the search would have stopped there (the bound is the start)
    far = 2 * np.tile(forged[0], (4, 1))
    assert krum(np.concatenate([seen.others, far]), f=4) < 12


def test_fang_trimmed_mean_is_just_outside_the_honest_range():
    seen = view(honest=6, seed=2)
    forged = make("fang_trimmed_mean").forge(seen)
    low, high = seen.others.min(0), seen.others.max(0)
    for j, s in enumerate(np.sign(seen.others.mean(0))):
        if s > 0:
            edge, far = low[j], low[j] / 2 if low[j] > 0 else low[j] * 2
        else:
            edge, far = high[j], high[j] * 2 if high[j] > 0 else high[j] / 2
        assert ((forged[:, j] >= min(edge, far)) & (forged[:, j] <= max(edge, far))).all()


def test_mimic_copies_the_client_farthest_along_the_first_principal_direction():
    seen = view(seed=4)
    C = seen.others - seen.others.mean(0)
    z = np.linalg.svd(C)[2][0]
    chosen = np.abs(C @ z).argmax()
    np.testing.assert_array_equal(make("mimic").forge(seen)[0], seen.others[chosen])
    np.testing.assert_array_equal(make("mimic", target=2).forge(seen)[0], seen.others[2])


def test_mimic_copies_somebody_where_training_has_diverged():
    seen = view(seed=4)
    seen.others[1, 0] = np.nan
    assert any(np.array_equal(make("mimic").forge(seen)[0], other) for other in seen.others)


def test_mpaf_pulls_to_the_same_model_every_round():
    base = []
    for seed in (0, 1):
        reference = np.random.default_rng(seed).permutation(np.linspace(-1, 1, 40))
        base.append(make("mpaf", scale=5.0).forge(view(seed=seed, reference=reference))[0] / 5 + reference)
    np.testing.assert_allclose(base[0], base[1])


def test_rop_moves_at_the_given_angle():
    seen = view(seed=6)
    mu = seen.others.mean(0)
    s = np.sqrt(((seen.others - mu) ** 2).sum(1).mean())
    for angle in (90.0, 180.0, 45.0):
        step = make("rop", z=2.0, angle=angle).forge(seen)[0] - mu
        assert np.linalg.norm(step) == pytest.approx(2 * s)
        assert step @ mu / np.linalg.norm(step) / np.linalg.norm(mu) == pytest.approx(math.cos(math.radians(angle)))
    assert np.linalg.norm(make("rop", z=0.0, location=1.0).forge(seen)[0]) == pytest.approx(0, abs=1e-12)


def test_free_rider_sends_nothing_or_a_disguise():
    seen = view(d=20_000)
    assert not make("free_rider").forge(seen).any()
    disguised = make("free_rider", noise=0.5).forge(seen)
    assert disguised.std() == pytest.approx(0.5 * np.sqrt((seen.own**2).mean()), rel=0.02)


def test_near_duplicates_keep_their_distance_and_their_jitter():
    seen = view(d=20_000)
    mu = seen.others.mean(0)
    s = np.sqrt(((seen.others - mu) ** 2).sum(1).mean())
    forged = make("near_duplicates", distance=2.0, jitter=0.5).forge(seen)
    np.testing.assert_allclose(np.linalg.norm(forged - mu, axis=1), math.hypot(2, 0.5) * s, rtol=0.03)
    np.testing.assert_allclose(np.linalg.norm(forged[0] - forged[1]), math.sqrt(0.5) * s, rtol=0.03)
    against = make("near_duplicates", jitter=0.0, towards="against").forge(seen)
    assert (against[0] == against[1]).all()
    assert (against[0] - mu) @ mu == pytest.approx(-s * np.linalg.norm(mu))


@pytest.mark.parametrize(("name", "bad"), [("nan", np.isnan), ("inf", np.isinf)])
def test_not_finite_spoils_the_given_number_of_coordinates(name, bad):
    seen = view()
    forged = make(name, coordinates=3).forge(seen)
    np.testing.assert_array_equal(bad(forged).sum(axis=1), 3)
    np.testing.assert_array_equal(forged[~bad(forged)], seen.own[~bad(forged)])
    assert bad(make(name, coordinates=10**6).forge(seen)).all()


def test_model_replacement_replaces_the_plain_mean():
    seen = view(M=3, honest=9)
    silent = np.zeros_like(seen.others)  # as if the others had converged
    forged = make("model_replacement").forge(seen)
    np.testing.assert_allclose(np.concatenate([silent, forged]).mean(0), seen.own.mean(0))
    np.testing.assert_allclose(make("model_replacement", scale=2.0).forge(seen), 2 * seen.own)
