"""Coefficients over a space stand for updates: Gram matrices are those of the attacks on coordinates."""

import numpy as np
import pytest

from honestly.sim.attacks import ATTACKS, DataAttack, View, make
from honestly.studies.layers.forge import FORMS, LAYERED, check, forge
from honestly.studies.layers.space import LayeredPopulation, Space
from honestly.studies.recordings import HONEST, Course

SIZES = (40, 7, 2, 300, 1)
K, M = 9, 3


def updates(seed=0):
    rng = np.random.default_rng(seed)
    scales = np.repeat([1.0, 0.1, 3.0, 0.02, 1.0], SIZES)
    honest = scales * (rng.normal(size=(1, sum(SIZES))) + rng.normal(size=(K, sum(SIZES))))
    return honest, scales * rng.normal(size=(4, sum(SIZES)))


def by_layer(X):
    parts = np.split(X, np.cumsum(SIZES)[:-1], axis=1)
    return np.stack([part @ part.T for part in parts])


def population():
    honest, poisoned = updates()
    return LayeredPopulation(
        "p", by_layer(np.concatenate([honest, poisoned])), np.array(SIZES), K, {"label_flip": np.arange(K, K + 4)}
    )


def space(seed=0):
    return Space.of(population(), M, np.random.default_rng(seed))


def about_honest_mean(X):
    return X - X[: K - M].mean(0)


LINEAR = (
    *("sign_flip", "sign_flip:gamma=1", "scaling", "scaling:gamma=1e6", "ipm", "ipm:epsilon=2", "mimic"),
    *("mimic:target=1", "min_max:direction=unit", "min_sum:direction=unit", "free_rider"),
    "near_duplicates:jitter=0:towards=against",
)


@pytest.mark.parametrize("spec", LINEAR)
def test_combinations_of_updates_are_exact(spec):
    name, *settings = spec.split(":")
    given = {k: v if v.isalpha() else float(v) for k, v in (s.split("=") for s in settings)}
    if "target" in given:
        given["target"] = int(given["target"])
    honest, _ = updates()
    view = View(own=honest[K - M :], others=honest[: K - M], rng=np.random.default_rng(0), clients=K)
    sent = make(name, **given).forge(view)
    expected = by_layer(about_honest_mean(np.concatenate([honest[: K - M], sent])))
    s = space()
    found = s.grams(forge(s, spec, np.random.default_rng(0)))
    scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-9)


def test_data_attacks_are_the_recorded_rows_of_the_last_attackers():
    honest, poisoned = updates()
    s = space()
    found = s.grams(forge(s, "label_flip", np.random.default_rng(0)))
    expected = by_layer(about_honest_mean(np.concatenate([honest[: K - M], poisoned[1:]])))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert forge(s, "backdoor", np.random.default_rng(0)) is None, "it was not recorded"


def test_honest_training_is_exact_and_variance_is_the_formula():
    honest, _ = updates()
    s = space()
    np.testing.assert_allclose(s.grams(s.own), by_layer(about_honest_mean(honest)), atol=1e-9)
    parts = np.split(about_honest_mean(honest)[: K - M], np.cumsum(SIZES)[:-1], axis=1)
    np.testing.assert_allclose(s.variance, [np.square(part).sum(1).mean() for part in parts])
    reference = np.split(honest[: K - M].mean(0), np.cumsum(SIZES)[:-1])
    np.testing.assert_allclose(s.length(s.mean), [np.linalg.norm(part) for part in reference])


def test_noise_falls_as_in_a_layer_of_that_size():
    """Squared lengths have mean 1 and variance 2/p, cosines with anything a mean square of 1/p."""
    lengths, cosines, ranks = [], [], []
    for seed in range(300):
        s = space(seed)
        G = s.grams(np.broadcast_to(s.noise, (s.L, M, s.b)))
        lengths.append(G[:, -1, -1])
        cosines.append(G[:, 0, -1] ** 2 / (G[:, 0, 0] * G[:, -1, -1]))
        ranks.append([np.linalg.matrix_rank(g, tol=1e-8 * g.max()) for g in G])
    np.testing.assert_allclose(np.mean(lengths, axis=0), 1.0, atol=0.35)
    np.testing.assert_allclose(np.var(lengths, axis=0), 2 / np.array(SIZES), rtol=0.5)
    np.testing.assert_allclose(np.mean(cosines, axis=0), 1 / np.array(SIZES), rtol=0.3)
    assert np.max(ranks, axis=0).tolist() == [K - 1, 7, 2, K - 1, 1], (
        "the honest about their mean have one direction less"
    )


def test_noise_has_the_lengths_that_attacks_ask_for():
    s = space()
    noisy = forge(s, "layer_noise:scale=3", np.random.default_rng(0))
    lengths = np.mean([s.length(noisy[:, m]) for m in range(M)], axis=0)
    assert lengths[3] == pytest.approx(3 * s.spread[3], rel=0.1)
    copies = forge(s, "layer_duplicates:jitter=0:distance=2", np.random.default_rng(0))
    np.testing.assert_allclose(s.length(copies[:, 0]), 2 * s.spread)
    np.testing.assert_array_equal(copies[:, 0], copies[:, 1])
    whole = forge(s, "near_duplicates:jitter=0", np.random.default_rng(0))
    assert np.square(s.length(whole[:, 0])).sum() == pytest.approx(s.variance.sum())


@pytest.mark.parametrize(("which", "layer"), [("largest", 3), ("smallest", 4), ("last", 4)])
def test_an_attack_in_one_layer_trains_honestly_in_the_others(which, layer):
    s = space()
    sent = forge(s, f"one_layer:which={which}", np.random.default_rng(0))
    for i in range(s.L):
        assert np.array_equal(sent[i], s.own) == (i != layer)
    np.testing.assert_allclose(s.length(sent[:, 0])[layer], 3 * s.spread[layer])


def test_every_word_is_checked():
    for spec in LAYERED:
        check(spec)
        assert forge(space(), spec, np.random.default_rng(0)).shape == (5, M, space().b)
    assert all(name in ATTACKS or any(spec.startswith(name) for spec in LAYERED) for name in FORMS)
    assert not any(issubclass(ATTACKS[name], DataAttack) for name in FORMS if name in ATTACKS)
    with pytest.raises(ValueError, match="did you mean one_layer"):
        check("one_laier")
    with pytest.raises(ValueError, match="unknown setting of attack layer_noise 'scall': did you mean scale"):
        check("layer_noise:scall=1")
    with pytest.raises(ValueError, match="unknown layer of attack one_layer 'widest'"):
        forge(space(), "one_layer:which=widest", np.random.default_rng(0))


def test_fewer_clients_keep_their_poisoned_rows_and_some_may_idle():
    honest, poisoned = updates()
    X = np.concatenate([honest, poisoned])
    rows = (HONEST,) * K + ("label_flip",) * 4
    course = Course("c", tuple("abcde"), np.array(SIZES), rows, {3: by_layer(X)})
    small = LayeredPopulation.of(course, 3, clients=5)
    np.testing.assert_allclose(small.grams, by_layer(X[K - 5 :]), atol=1e-12)
    assert small.poisoned["label_flip"].tolist() == [5, 6, 7, 8]
    idle = LayeredPopulation.of(course, 3, idle=2)
    assert not idle.grams[:, :2].any()
    assert not idle.grams[:, :, :2].any()
    assert idle.grams[:, 2:, 2:].any()
    whole = idle.whole()
    np.testing.assert_allclose(whole.grams[0], idle.grams.sum(0))
    with pytest.raises(ValueError, match="has 9 clients, but 10 were asked for"):
        LayeredPopulation.of(course, 3, clients=10)
